// SPDX-License-Identifier: Apache-2.0
// A rank's two communicators over device memory, along the rows and columns of the grid. Grids with
// a row in common share its communicator.
#pragma once

#include <memory>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/ranks/rank_grid.h"
#include "kernels/api/device_memory.h"

namespace millrace::engine {

struct DeviceGroups {
  std::shared_ptr<comm::DeviceCommunicator> tp;  // same tokens, other heads
  std::shared_ptr<comm::DeviceCommunicator> cp;  // same heads, other tokens

  const char* transport = "";  // "nccl", or "host": through host memory
};

// Collective over the grid's world. Uses NCCL where every rank has a GPU of its own and the build
// has NCCL, otherwise host memory. Device and grid outlive it.
Result<DeviceGroups> make_device_groups(kernels::DeviceMemory& device, const RankGrid& grid,
                                        bool own_gpu, Deadline deadline);

}  // namespace millrace::engine
