// Single rows of a matrix in device memory whose rows are dealt over the context-parallel ranks,
// brought to the host memory of all of them.
#pragma once

#include <cstdint>
#include <span>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/exchange/partition.h"

namespace millrace::worker {

// `rows`: this rank's, one after the other in device memory. `positions`: ascending; `out`
// [positions.size() * row_bytes]: their rows in that order, on every rank. Collective over cp.
Result<void> gather_rows(kernels::Device& device, const Partition& partition,
                         comm::Communicator& cp, std::span<const int64_t> positions,
                         int64_t row_bytes, const void* rows, void* out, Deadline deadline);

}  // namespace millrace::worker
