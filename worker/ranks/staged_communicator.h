// Collectives over device memory by way of host memory and a Communicator: what ranks use that have
// no GPU of their own each. On a device whose memory is the host's nothing is copied. Every call
// returns when its work is done.
#pragma once

#include <optional>

#include "comm/api/device_communicator.h"
#include "kernels/api/host_window.h"

namespace millrace::worker {

class StagedCommunicator final : public comm::DeviceCommunicator {
 public:
  // Both outlive it.
  StagedCommunicator(kernels::Device& device, comm::Communicator& ranks)
      : device_(device), ranks_(ranks), sent_(device), received_(device) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void follow() override {}
  comm::CollectiveMark mark() override { return {}; }
  void join(comm::CollectiveMark) override {}

  Result<std::unique_ptr<comm::CollectiveBuffer>> allocate(int64_t bytes) override;
  Result<void> connect(comm::CollectiveBuffer&, Deadline) override { return {}; }
  void trim() override {}
  Result<void> all_gather(std::string_view what, void* data, int64_t bytes,
                          Deadline deadline) override;
  Result<void> broadcast(std::string_view what, void* data, int64_t bytes, int root,
                         Deadline deadline) override;
  Result<void> all_reduce_sum(std::string_view what, float* data, int64_t count,
                              Deadline deadline) override;
  Result<void> check() const override { return {}; }
  comm::CommStatsByName stats() const override { return stats_; }

 private:
  // A HostWindow that grows with what is asked of it.
  class Window {
   public:
    explicit Window(kernels::Device& device) : device_(device) {}
    Result<kernels::HostWindow*> of(int64_t bytes, Deadline deadline);

   private:
    kernels::Device& device_;
    std::optional<kernels::HostWindow> window_;
  };

  // What the ranks' own communicator did meanwhile is what these collectives cost.
  template <typename Body>
  Result<void> counted(std::string_view what, Body&& body);

  kernels::Device& device_;
  comm::Communicator& ranks_;
  Window sent_, received_;
  comm::CommStatsByName stats_;
};

}  // namespace millrace::worker
