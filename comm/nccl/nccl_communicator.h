// SPDX-License-Identifier: Apache-2.0
// Collectives among GPUs by NCCL, one GPU for each rank. In a build without NCCL the same functions
// return an error that says so.
#pragma once

#include <memory>

#include "comm/api/communicator.h"
#include "comm/api/device_communicator.h"
#include "common/clock.h"
#include "common/result.h"

struct CUstream_st;  // CUDA's: what a cudaStream_t points to

namespace millrace::comm {

struct NcclOptions {
  int gpu = 0;                        // among those this process sees; used by no other rank
  CUstream_st* operations = nullptr;  // stream of the device whose operations are followed
};

bool built_with_nccl();

// Writes to the environment, so main calls it before other threads can read that. Multicast over
// NVLink stays off unless NCCL_NVLS_ENABLE is set, because NCCL 2.27 and 2.28 may hang if an
// allocation of it fails half-way (their documentation of that variable).
void prepare_nccl();

// Collective over `bootstrap`, whose ranks become this communicator's. `bootstrap` is not used
// afterwards. Call after prepare_nccl().
//
// A peer's death does not end a collective here: NCCL's kernels keep waiting. The watcher of the
// ranks (worker/sync/rank_watch.h) ends the process, and that ends them.
Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(Communicator& bootstrap,
                                                                   const NcclOptions& options,
                                                                   Deadline deadline);

}  // namespace millrace::comm
