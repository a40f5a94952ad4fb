// SPDX-License-Identifier: Apache-2.0
// Collectives over device memory that go through host memory and a Communicator, for ranks that do
// not each have a GPU of their own. Nothing is copied on a device whose memory is the host's. Every
// call returns when its work is done.
#pragma once

#include <optional>

#include "comm/api/device_communicator.h"
#include "kernels/api/host_window.h"

namespace millrace::engine {

class StagedCommunicator final : public comm::DeviceCommunicator {
 public:
  // Both outlive it.
  StagedCommunicator(kernels::DeviceMemory& device, comm::Communicator& ranks)
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
  // A HostWindow that grows with the sizes asked for.
  class Window {
   public:
    explicit Window(kernels::DeviceMemory& device) : device_(device) {}
    Result<kernels::HostWindow*> of(int64_t bytes, Deadline deadline);

   private:
    kernels::DeviceMemory& device_;
    std::optional<kernels::HostWindow> window_;
  };

  // Attributes to these collectives what the ranks' own communicator did meanwhile.
  template <typename Body>
  Result<void> counted(std::string_view what, Body&& body);

  kernels::DeviceMemory& device_;
  comm::Communicator& ranks_;
  Window sent_, received_;
  comm::CommStatsByName stats_;
};

}  // namespace millrace::engine
