// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/api/split_order.h"
#include "comm/mpi/mpi_transfers.h"
#include "common/check.h"

namespace millrace::comm {
namespace {

// A reduction smaller than this is one exchange of everything: latency counts, bytes do not.
constexpr int64_t kSmallReductionBytes = 16 << 10;
// Larger reductions go in chunks of this size, which bounds the scratch memory.
constexpr int64_t kReductionChunkBytes = 8 << 20;

// One rank's part in split(): its choice, and the tag that it could give the new communicator.
struct SplitProposal {
  SplitChoice choice;
  int32_t next_tag;
};

// sum = contributions[0] + contributions[1] + ..., in that order, each of sum.size() elements.
template <typename T>
void sum_in_order(const T* contributions, int num_contributions, std::span<T> sum) {
  std::copy_n(contributions, sum.size(), sum.begin());
  for (int rank = 1; rank < num_contributions; ++rank) {
    const T* addend = contributions + static_cast<size_t>(rank) * sum.size();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
  }
}

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiFamily> family, int tag,
                                 std::vector<int> processes, int rank)
    : family_(std::move(family)), tag_(tag), processes_(std::move(processes)), rank_(rank) {}

MpiCommunicator::~MpiCommunicator() {
  // MPI may still write into it; the process is about to end.
  if (family_->has_abandoned_transfers()) (void)scratch_.release();
}

template <typename Body>
Result<void> MpiCommunicator::run(const char* call, Body body) {
  MR_RETURN_IF_ERROR(family_->check());
  const Stopwatch stopwatch;
  Result<void> result = body();
  stats_.calls += 1;
  stats_.seconds += stopwatch.elapsed_s();
  if (result.ok()) return result;
  return family_->fail(error(result.error().code, "{} on rank {} of {} after {:.3f} s: {}", call,
                             rank_, size(), stopwatch.elapsed_s(), result.error().message));
}

Result<void> MpiCommunicator::barrier(Deadline deadline) {
  return run("barrier", [&]() -> Result<void> {
    // Dissemination: after the round of distance d, 2d neighbours are known to have arrived.
    for (int distance = 1; distance < size(); distance *= 2) {
      MR_RETURN_IF_ERROR(barrier_round(distance, deadline));
    }
    return {};
  });
}

Result<void> MpiCommunicator::barrier_round(int distance, Deadline deadline) {
  const std::byte here{1};
  std::byte there{0};
  MpiTransfers transfers(*family_, tag_);
  transfers.receive(process((rank_ - distance + size()) % size()), std::span(&there, 1));
  transfers.send(process((rank_ + distance) % size()), std::span(&here, 1));
  return transfers.wait(deadline);
}

Result<void> MpiCommunicator::broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  MR_CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  return run("broadcast", [&]() -> Result<void> {
    // Binomial tree over places, the root's being 0: place p receives from p without its lowest
    // bit, then sends to p + each lower power of two.
    const int place = (rank_ - root + size()) % size();
    int reach = 1;
    while (reach < size() && (place & reach) == 0) reach *= 2;
    if (place != 0) {
      MpiTransfers from_parent(*family_, tag_);
      from_parent.receive(process((place - reach + root) % size()), data);
      MR_RETURN_IF_ERROR(from_parent.wait(deadline));
      stats_.bytes_received += static_cast<int64_t>(data.size());
    }
    MpiTransfers to_children(*family_, tag_);
    for (int step = reach / 2; step >= 1; step /= 2) {
      if (place + step < size()) to_children.send(process((place + step + root) % size()), data);
    }
    return to_children.wait(deadline);
  });
}

Result<void> MpiCommunicator::all_gather(std::span<const std::byte> send,
                                         std::span<std::byte> receive,
                                         std::span<const int64_t> counts, Deadline deadline) {
  MR_CHECK(static_cast<int>(counts.size()) == size(), "{} counts for {} ranks", counts.size(),
           size());
  MR_CHECK(static_cast<int64_t>(send.size()) == counts[static_cast<size_t>(rank_)],
           "rank {} sends {} bytes, its count is {}", rank_, send.size(),
           counts[static_cast<size_t>(rank_)]);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  MR_CHECK(static_cast<int64_t>(receive.size()) >= total, "all_gather of {} bytes into {}", total,
           receive.size());
  return run("all_gather", [&] { return gather(send, receive, counts, deadline); });
}

Result<void> MpiCommunicator::gather(std::span<const std::byte> send, std::span<std::byte> receive,
                                     std::span<const int64_t> counts, Deadline deadline) {
  std::vector<std::span<std::byte>> places;
  for (const int64_t count : counts) {
    places.push_back(receive.first(static_cast<size_t>(count)));
    receive = receive.subspan(static_cast<size_t>(count));
  }
  MpiTransfers transfers(*family_, tag_);
  // Rank r starts with r + 1, so that no rank is the first for everyone.
  for (int step = 1; step < size(); ++step) {
    const int source = (rank_ - step + size()) % size();
    transfers.receive(process(source), places[static_cast<size_t>(source)]);
  }
  for (int step = 1; step < size(); ++step) transfers.send(process((rank_ + step) % size()), send);

  // Callers may have their part in place already.
  const std::span<std::byte> own = places[static_cast<size_t>(rank_)];
  if (!send.empty() && own.data() != send.data()) {
    std::memmove(own.data(), send.data(), send.size());
  }
  MR_RETURN_IF_ERROR(transfers.wait(deadline));
  stats_.bytes_received +=
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) - static_cast<int64_t>(send.size());
  return {};
}

Result<void> MpiCommunicator::all_reduce_sum(std::span<float> data, Deadline deadline) {
  return all_reduce(data, deadline);
}

Result<void> MpiCommunicator::all_reduce_sum(std::span<double> data, Deadline deadline) {
  return all_reduce(data, deadline);
}

template <typename T>
Result<void> MpiCommunicator::all_reduce(std::span<T> data, Deadline deadline) {
  return run("all_reduce_sum", [&]() -> Result<void> {
    if (size() == 1) return {};
    if (static_cast<int64_t>(data.size_bytes()) <= kSmallReductionBytes) {
      return reduce_small(data, deadline);
    }
    constexpr size_t kChunk = kReductionChunkBytes / sizeof(T);
    for (auto rest = data; !rest.empty(); rest = rest.subspan(std::min(kChunk, rest.size()))) {
      MR_RETURN_IF_ERROR(reduce_chunk(rest.first(std::min(kChunk, rest.size())), deadline));
    }
    return {};
  });
}

template <typename T>
Result<void> MpiCommunicator::reduce_small(std::span<T> data, Deadline deadline) {
  const auto num_bytes = static_cast<int64_t>(data.size_bytes());
  const std::vector<int64_t> counts(processes_.size(), num_bytes);
  std::byte* all = scratch(num_bytes * size());
  MR_RETURN_IF_ERROR(gather(std::as_bytes(data),
                            std::span(all, static_cast<size_t>(num_bytes * size())), counts,
                            deadline));
  sum_in_order(reinterpret_cast<const T*>(all), size(), data);
  return {};
}

// Rank r sums the r-th piece of everyone's data and hands the sum to everyone.
template <typename T>
Result<void> MpiCommunicator::reduce_chunk(std::span<T> data, Deadline deadline) {
  const auto piece = [&](int rank) {
    const size_t begin = data.size() * static_cast<size_t>(rank) / processes_.size();
    const size_t end = data.size() * (static_cast<size_t>(rank) + 1) / processes_.size();
    return data.subspan(begin, end - begin);
  };
  const std::span<T> own = piece(rank_);
  T* contributions = reinterpret_cast<T*>(scratch(static_cast<int64_t>(own.size_bytes()) * size()));
  const auto contribution = [&](int rank) {
    return std::span(contributions + static_cast<size_t>(rank) * own.size(), own.size());
  };

  MpiTransfers pieces(*family_, tag_);
  for (int step = 1; step < size(); ++step) {
    const int source = (rank_ - step + size()) % size();
    pieces.receive(process(source), std::as_writable_bytes(contribution(source)));
  }
  for (int step = 1; step < size(); ++step) {
    const int target = (rank_ + step) % size();
    pieces.send(process(target), std::as_bytes(piece(target)));
  }
  std::copy(own.begin(), own.end(), contribution(rank_).begin());
  MR_RETURN_IF_ERROR(pieces.wait(deadline));
  stats_.bytes_received += static_cast<int64_t>(own.size_bytes()) * (size() - 1);
  sum_in_order(static_cast<const T*>(contributions), size(), own);

  MpiTransfers sums(*family_, tag_);
  for (int step = 1; step < size(); ++step) {
    const int source = (rank_ - step + size()) % size();
    sums.receive(process(source), std::as_writable_bytes(piece(source)));
  }
  for (int step = 1; step < size(); ++step) {
    sums.send(process((rank_ + step) % size()), std::as_bytes(own));
  }
  MR_RETURN_IF_ERROR(sums.wait(deadline));
  stats_.bytes_received += static_cast<int64_t>(data.size_bytes() - own.size_bytes());
  return {};
}

Result<std::unique_ptr<Communicator>> MpiCommunicator::split(int color, int key,
                                                             Deadline deadline) {
  std::vector<SplitProposal> proposals(processes_.size());
  const SplitProposal mine{{color, key}, family_->next_tag()};
  const std::vector<int64_t> counts(processes_.size(), sizeof(SplitProposal));
  MR_RETURN_IF_ERROR(all_gather(std::as_bytes(std::span(&mine, 1)),
                                std::as_writable_bytes(std::span(proposals)), counts, deadline));

  std::vector<SplitChoice> choices;
  int agreed_tag = 0;
  for (const SplitProposal& proposal : proposals) {
    choices.push_back(proposal.choice);
    agreed_tag = std::max(agreed_tag, proposal.next_tag);
  }
  MR_RETURN_IF_ERROR(family_->take_tag(agreed_tag));

  const std::vector<int> chosen = split_order(choices, color);
  std::vector<int> processes;
  for (const int rank : chosen) processes.push_back(process(rank));
  const auto place = std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin();
  return std::unique_ptr<Communicator>(std::make_unique<MpiCommunicator>(
      family_, agreed_tag, std::move(processes), static_cast<int>(place)));
}

std::byte* MpiCommunicator::scratch(int64_t num_bytes) {
  if (num_bytes > scratch_bytes_) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(num_bytes));
    scratch_bytes_ = num_bytes;
  }
  return scratch_.get();
}

}  // namespace millrace::comm
