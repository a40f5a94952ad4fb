// Collectives among GPUs by NCCL, one GPU a rank. Without NCCL in the build the same functions say
// so.
#pragma once

#include <memory>

#include "comm/api/communicator.h"
#include "comm/api/device_communicator.h"
#include "common/clock.h"
#include "common/result.h"

struct CUstream_st;  // CUDA's: what a cudaStream_t points to

namespace millrace::comm {

struct NcclOptions {
  int gpu = 0;                        // among those this process sees; no other rank's
  CUstream_st* operations = nullptr;  // stream of the device whose operations are followed
};

bool built_with_nccl();

// Writes to the environment: main calls it before there are threads that read it. Multicast over
// NVLink stays off unless NCCL_NVLS_ENABLE is set: an allocation of it that fails half-way may hang
// NCCL 2.27 and 2.28 (their documentation of that variable).
void prepare_nccl();

// Collective over `bootstrap`, whose ranks become this communicator's and which is not used after.
// After prepare_nccl().
//
// A peer that dies ends no collective here: NCCL's kernels wait on. Who watches the ranks
// (worker/watch/group_watch.h) ends the process, and with it they end.
Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(Communicator& bootstrap,
                                                                   const NcclOptions& options,
                                                                   Deadline deadline);

}  // namespace millrace::comm
