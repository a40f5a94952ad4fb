// SPDX-License-Identifier: Apache-2.0
// Collectives that take place as late as allowed: when the device, in its own order of execution,
// waits for them. On a GPU, collectives run concurrently with other operations. Code that works
// here makes no assumption that this would break: it reads nothing before the join, and overwrites
// nothing that is still to be sent.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "comm/api/device_communicator.h"
#include "common/check.h"
#include "engine/ranks/device_groups.h"
#include "tests/support/far_device.h"

namespace millrace::test {

class LateCommunicator final : public comm::DeviceCommunicator {
 public:
  // `at_once` does the work, on `device`.
  LateCommunicator(FarDevice& device, std::shared_ptr<comm::DeviceCommunicator> at_once)
      : device_(device), at_once_(std::move(at_once)) {}

  int rank() const override { return at_once_->rank(); }
  int size() const override { return at_once_->size(); }
  void follow() override { at_once_->follow(); }
  comm::CollectiveMark mark() override {
    return comm::CollectiveMark(num_joined_ + std::ssize(called_));
  }
  void join(comm::CollectiveMark mark) override {
    for (; num_joined_ < static_cast<int64_t>(mark); ++num_joined_) {
      device_.enqueue([collective = std::move(called_.front())] {
        const auto done = collective();
        MR_CHECK(done.ok(), "{}", done.error().to_string());
      });
      called_.pop_front();
    }
  }

  Result<std::unique_ptr<comm::CollectiveBuffer>> allocate(int64_t bytes) override {
    return at_once_->allocate(bytes);
  }
  Result<void> connect(comm::CollectiveBuffer& buffer, Deadline deadline) override {
    return at_once_->connect(buffer, deadline);
  }
  Result<void> all_gather(std::string_view what, void* data, int64_t bytes,
                          Deadline deadline) override {
    return later([=, this] { return at_once_->all_gather(what, data, bytes, deadline); });
  }
  Result<void> broadcast(std::string_view what, void* data, int64_t bytes, int root,
                         Deadline deadline) override {
    return later([=, this] { return at_once_->broadcast(what, data, bytes, root, deadline); });
  }
  Result<void> all_reduce_sum(std::string_view what, float* data, int64_t count,
                              Deadline deadline) override {
    return later([=, this] { return at_once_->all_reduce_sum(what, data, count, deadline); });
  }
  void trim() override { at_once_->trim(); }
  Result<void> check() const override { return at_once_->check(); }
  comm::CommStatsByName stats() const override { return at_once_->stats(); }

 private:
  Result<void> later(std::function<Result<void>()> collective) {
    called_.push_back(std::move(collective));
    return {};
  }

  FarDevice& device_;
  std::shared_ptr<comm::DeviceCommunicator> at_once_;
  std::deque<std::function<Result<void>()>> called_;  // called but not joined
  int64_t num_joined_ = 0;
};

// `device` must be a FarDevice.
inline engine::DeviceGroups late(kernels::Device& device, engine::DeviceGroups groups) {
  auto& far = dynamic_cast<FarDevice&>(device);
  return {.tp = std::make_unique<LateCommunicator>(far, std::move(groups.tp)),
          .cp = std::make_unique<LateCommunicator>(far, std::move(groups.cp)),
          .transport = groups.transport};
}

}  // namespace millrace::test
