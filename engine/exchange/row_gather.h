// SPDX-License-Identifier: Apache-2.0
// Brings single rows of a matrix to the host memory of all context-parallel ranks. The matrix is in
// device memory, and its rows are dealt over these ranks.
#pragma once

#include <cstdint>
#include <span>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "engine/exchange/partition.h"
#include "kernels/api/device.h"

namespace millrace::engine {

// Collective over cp. `rows`: this rank's rows, contiguous in device memory. `positions`:
// ascending. `out` [positions.size() * row_bytes]: gets the rows of `positions` in that order, on
// every rank.
Result<void> gather_rows(kernels::Device& device, const Partition& partition,
                         comm::Communicator& cp, std::span<const int64_t> positions,
                         int64_t row_bytes, const void* rows, void* out, Deadline deadline);

}  // namespace millrace::engine
