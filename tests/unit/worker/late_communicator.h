// Collectives that take place no sooner than they must: when the device is made to wait for them.
// What runs on it makes no assumption that a GPU, whose collectives run beside its operations,
// would break: nothing is read before the join, and nothing overwritten that is still to be sent.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "comm/api/device_communicator.h"
#include "common/check.h"
#include "worker/device_groups.h"

namespace millrace::test {

class LateCommunicator final : public comm::DeviceCommunicator {
 public:
  // `at_once`: does the work.
  explicit LateCommunicator(std::unique_ptr<comm::DeviceCommunicator> at_once)
      : at_once_(std::move(at_once)) {}

  int rank() const override { return at_once_->rank(); }
  int size() const override { return at_once_->size(); }
  void follow() override { at_once_->follow(); }
  comm::CollectiveMark mark() override { return num_done_ + std::ssize(called_); }
  void join(comm::CollectiveMark mark) override {
    for (; num_done_ < mark; ++num_done_) {
      const auto done = called_.front()();
      MR_CHECK(done.ok(), "{}", done.error().to_string());
      called_.pop_front();
    }
  }

  Result<std::unique_ptr<comm::CollectiveBuffer>> allocate(int64_t bytes,
                                                           Deadline deadline) override {
    return at_once_->allocate(bytes, deadline);
  }
  Result<void> all_gather(void* data, int64_t bytes, Deadline deadline) override {
    return later([=, this] { return at_once_->all_gather(data, bytes, deadline); });
  }
  Result<void> broadcast(void* data, int64_t bytes, int root, Deadline deadline) override {
    return later([=, this] { return at_once_->broadcast(data, bytes, root, deadline); });
  }
  Result<void> all_reduce_sum(float* data, int64_t count, Deadline deadline) override {
    return later([=, this] { return at_once_->all_reduce_sum(data, count, deadline); });
  }
  comm::CommStats stats() const override { return at_once_->stats(); }

 private:
  Result<void> later(std::function<Result<void>()> collective) {
    called_.push_back(std::move(collective));
    return {};
  }

  std::unique_ptr<comm::DeviceCommunicator> at_once_;
  std::deque<std::function<Result<void>()>> called_;  // and not yet done
  comm::CollectiveMark num_done_ = 0;
};

inline worker::DeviceGroups late(worker::DeviceGroups groups) {
  return {.tp = std::make_unique<LateCommunicator>(std::move(groups.tp)),
          .cp = std::make_unique<LateCommunicator>(std::move(groups.cp)),
          .transport = groups.transport};
}

}  // namespace millrace::test
