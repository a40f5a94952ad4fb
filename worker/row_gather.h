// Single rows of a matrix in device memory whose rows are dealt over the context-parallel ranks,
// brought to the host memory of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/partition.h"

namespace millrace::worker {

// Has `device` copy row_bytes of the row this rank holds at `local_row` to host memory `row`.
using CopyRow = std::function<void(int64_t local_row, std::byte* row)>;

// `positions`: ascending; `out` [positions.size() * row_bytes]: their rows in that order, on every
// rank. Collective over cp.
Result<void> gather_rows(kernels::Device& device, const Partition& partition,
                         comm::Communicator& cp, std::span<const int64_t> positions,
                         int64_t row_bytes, const CopyRow& copy_row, void* out, Deadline deadline);

// The usual one: rows one after the other from `rows`. Both arguments outlive it.
CopyRow rows_at(kernels::Device& device, const void* rows, int64_t row_bytes);

}  // namespace millrace::worker
