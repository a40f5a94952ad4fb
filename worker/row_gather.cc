#include "worker/row_gather.h"

#include <cstring>
#include <vector>

namespace millrace::worker {

ReadRow rows_at(const void* rows, int64_t row_bytes) {
  return [=](int64_t local_row, std::byte* row) {
    std::memcpy(row, static_cast<const std::byte*>(rows) + local_row * row_bytes,
                static_cast<size_t>(row_bytes));
  };
}

Result<void> gather_rows(const Partition& partition, comm::Communicator& cp,
                         std::span<const int64_t> positions, int64_t row_bytes,
                         const ReadRow& read_row, void* out, Deadline deadline) {
  std::vector<int64_t> counts(static_cast<size_t>(cp.size()), 0);
  std::vector<std::byte> send;
  for (const int64_t position : positions) {
    const int owner = partition.owner(position);
    counts[static_cast<size_t>(owner)] += row_bytes;
    if (owner != cp.rank()) continue;
    send.resize(send.size() + static_cast<size_t>(row_bytes));
    read_row(partition.local_row(owner, position), send.data() + send.size() - row_bytes);
  }
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

}  // namespace millrace::worker
