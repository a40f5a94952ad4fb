// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/device_groups.h"

#include <array>

#include "comm/nccl/nccl_communicator.h"
#include "engine/ranks/agreement.h"
#include "engine/ranks/staged_communicator.h"

namespace millrace::engine {

namespace {

Result<bool> all_ranks(comm::Communicator& world, bool own, Deadline deadline) {
  std::array<double, 1> count = {own ? 1.0 : 0.0};
  MR_RETURN_IF_ERROR(world.all_reduce_sum(std::span<double>(count), deadline));
  return count[0] == world.size();
}

Result<std::unique_ptr<comm::DeviceCommunicator>> connect(kernels::DeviceMemory& device,
                                                          comm::Communicator& ranks, bool nccl,
                                                          Deadline deadline) {
  if (!nccl || ranks.size() == 1) {
    return std::unique_ptr<comm::DeviceCommunicator>(
        std::make_unique<StagedCommunicator>(device, ranks));
  }
  const auto stream = *device.gpu_stream();
  return comm::make_nccl_communicator(ranks, {.gpu = stream.gpu, .operations = stream.handle},
                                      deadline);
}

}  // namespace

Result<DeviceGroups> make_device_groups(kernels::DeviceMemory& device, const RankGrid& grid,
                                        bool own_gpu, Deadline deadline) {
  const bool able = comm::built_with_nccl() && own_gpu && device.gpu_stream().has_value();
  MR_ASSIGN_OR_RETURN(const bool nccl, all_ranks(grid.world(), able, deadline));
  DeviceGroups groups;
  groups.transport = nccl ? "nccl" : "host";
  Result<void> own;
  for (auto [group, ranks] : {std::pair(&groups.tp, &grid.tp()), {&groups.cp, &grid.cp()}}) {
    auto made = connect(device, *ranks, nccl, deadline);
    if (made.ok()) *group = std::move(*made);
    own = made.status();
    MR_RETURN_IF_ERROR(all_agree(grid.world(), own, deadline));
  }
  return groups;
}

}  // namespace millrace::engine
