// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange/row_gather.h"

#include <cstddef>
#include <cstring>
#include <vector>

namespace millrace::engine {

Result<void> gather_rows(kernels::Device& device, const Partition& partition,
                         comm::Communicator& cp, std::span<const int64_t> positions,
                         int64_t row_bytes, const void* rows, void* out, Deadline deadline) {
  std::vector<int64_t> counts(static_cast<size_t>(cp.size()), 0);
  for (const int64_t position : positions) {
    counts[static_cast<size_t>(partition.owner(position))] += row_bytes;
  }
  std::vector<std::byte> send(static_cast<size_t>(counts[static_cast<size_t>(cp.rank())]));
  std::byte* row = send.data();
  for (const int64_t position : positions) {
    if (partition.owner(position) != cp.rank()) continue;
    const int64_t local_row = partition.local_row(cp.rank(), position);
    device.copy(row, static_cast<const std::byte*>(rows) + local_row * row_bytes, row_bytes);
    row += row_bytes;
  }
  MR_RETURN_IF_ERROR(device.synchronize(deadline));
  std::vector<std::byte> by_rank(positions.size() * static_cast<size_t>(row_bytes));
  MR_RETURN_IF_ERROR(cp.all_gather(send, by_rank, counts, deadline));

  std::vector<int64_t> cursor(counts.size(), 0);
  for (size_t r = 1; r < counts.size(); ++r) cursor[r] = cursor[r - 1] + counts[r - 1];
  auto* to = static_cast<std::byte*>(out);
  for (const int64_t position : positions) {
    int64_t& from = cursor[static_cast<size_t>(partition.owner(position))];
    std::memcpy(to, by_rank.data() + from, static_cast<size_t>(row_bytes));
    from += row_bytes;
    to += row_bytes;
  }
  return {};
}

}  // namespace millrace::engine
