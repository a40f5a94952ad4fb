// Single rows of a matrix whose rows are dealt over the context-parallel ranks, brought to all of
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "worker/partition.h"

namespace millrace::worker {

// Writes row_bytes of the row this rank holds at `local_row`.
using ReadRow = std::function<void(int64_t local_row, std::byte* row)>;

// `positions`: ascending; `out` [positions.size() * row_bytes]: their rows in that order, on every
// rank. Collective over cp.
Result<void> gather_rows(const Partition& partition, comm::Communicator& cp,
                         std::span<const int64_t> positions, int64_t row_bytes,
                         const ReadRow& read_row, void* out, Deadline deadline);

// The usual reader: rows one after the other from `rows`. `rows` outlives it.
ReadRow rows_at(const void* rows, int64_t row_bytes);

}  // namespace millrace::worker
