// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/comm/communicator_contract.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace millrace::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Long enough for sanitizers on a busy machine, so that only a bug reaches it.
Deadline ample() {
  return Deadline::after(seconds(60));
}

std::byte pattern(int rank, size_t i) {
  return static_cast<std::byte>((static_cast<size_t>(rank) * 31 + i * 7 + (i >> 8)) & 0xff);
}

std::vector<std::byte> pattern_bytes(int rank, size_t num_bytes) {
  std::vector<std::byte> bytes(num_bytes);
  for (size_t i = 0; i < num_bytes; ++i) bytes[i] = pattern(rank, i);
  return bytes;
}

void broadcast_brings_the_roots_bytes(Communicator& comm) {
  for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20}) {
    for (int root = 0; root < comm.size(); ++root) {
      auto data = pattern_bytes(comm.rank(), num_bytes);
      ASSERT_TRUE(comm.broadcast(data, root, ample()).ok());
      EXPECT_TRUE(data == pattern_bytes(root, num_bytes)) << num_bytes << " bytes from " << root;
    }
  }
}

// Small integers: every order of summation gives the same, exact sum.
template <typename T>
void all_reduce_is_exact(Communicator& comm) {
  for (const size_t n : {0, 1, 7, 4096, 4097, 2'500'003}) {
    std::vector<T> data(n);
    for (size_t i = 0; i < n; ++i) data[i] = static_cast<T>((comm.rank() + 1) * (1 + i % 1000));
    ASSERT_TRUE(comm.all_reduce_sum(std::span<T>(data), ample()).ok());
    const size_t ranks = static_cast<size_t>(comm.size());
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      wrong += data[i] != static_cast<T>(ranks * (ranks + 1) / 2 * (1 + i % 1000));
    }
    EXPECT_EQ(wrong, 0u) << n << " elements";
  }
}

// The i-th of 64 values that cancel and round, so that another order of summation gives other bits.
float touchy(int rank, size_t i) {
  const float large = rank % 2 == 0 ? 1e8f : -1e8f;
  return large + 0.37f * static_cast<float>(rank * 64 + static_cast<int>(i % 64) + 1);
}

void all_reduce_sums_in_rank_order(Communicator& comm) {
  for (const size_t n : {size_t{64}, size_t{100'000}}) {
    std::vector<float> data(n);
    for (size_t i = 0; i < n; ++i) data[i] = touchy(comm.rank(), i);
    ASSERT_TRUE(comm.all_reduce_sum(std::span(data), ample()).ok());
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      float expected = touchy(0, i);
      for (int rank = 1; rank < comm.size(); ++rank) expected += touchy(rank, i);
      wrong += data[i] != expected;
    }
    EXPECT_EQ(wrong, 0u) << n << " elements";
  }
}

std::vector<std::byte> concatenated(std::span<const int64_t> counts) {
  std::vector<std::byte> all;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const auto part = pattern_bytes(static_cast<int>(rank), static_cast<size_t>(counts[rank]));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void expect_all_gather(Communicator& comm, std::span<const int64_t> counts) {
  const auto expected = concatenated(counts);
  const auto send =
      pattern_bytes(comm.rank(), static_cast<size_t>(counts[static_cast<size_t>(comm.rank())]));
  std::vector<std::byte> received(expected.size());
  ASSERT_TRUE(comm.all_gather(send, received, counts, ample()).ok());
  EXPECT_TRUE(received == expected);
}

void all_gather_takes_uneven_counts(Communicator& comm) {
  const auto ranks = static_cast<size_t>(comm.size());
  std::vector<int64_t> counts(ranks);
  expect_all_gather(comm, counts);  // nothing from anyone
  for (size_t rank = 0; rank < ranks; ++rank) counts[rank] = static_cast<int64_t>(rank * 1001);
  expect_all_gather(comm, counts);
  for (size_t rank = 0; rank < ranks; ++rank) counts[rank] = rank + 1 == ranks ? 0 : 77;
  expect_all_gather(comm, counts);
  for (size_t rank = 0; rank < ranks; ++rank) counts[rank] = (2 << 20) + static_cast<int>(rank);
  expect_all_gather(comm, counts);
}

void all_gather_works_in_place(Communicator& comm) {
  const std::vector<int64_t> counts(static_cast<size_t>(comm.size()), 5000);
  std::vector<std::byte> all(counts.size() * 5000);
  const auto own = std::span(all).subspan(static_cast<size_t>(comm.rank()) * 5000, 5000);
  const auto mine = pattern_bytes(comm.rank(), 5000);
  std::copy(mine.begin(), mine.end(), own.begin());
  ASSERT_TRUE(comm.all_gather(own, all, counts, ample()).ok());
  EXPECT_TRUE(all == concatenated(counts));
}

// The ranks of `comm`'s parent that belong to `comm`, in order.
std::vector<int> members(Communicator& comm, int parent_rank) {
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  const std::vector<int64_t> counts(ranks.size(), sizeof(int));
  EXPECT_TRUE(comm.all_gather(std::as_bytes(std::span(&parent_rank, 1)),
                              std::as_writable_bytes(std::span(ranks)), counts, ample())
                  .ok());
  return ranks;
}

void split_makes_rows_and_columns(Communicator& comm) {
  const int width = comm.size() % 2 == 0 ? 2 : 1;
  const int row = comm.rank() / width;
  const int column = comm.rank() % width;
  auto rows = comm.split(row, column, ample());
  auto columns = comm.split(column, row, ample());
  ASSERT_TRUE(rows.ok());
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ((*rows)->rank(), column);
  EXPECT_EQ((*columns)->rank(), row);

  std::vector<int> row_members, column_members;
  for (int i = 0; i < width; ++i) row_members.push_back(row * width + i);
  for (int i = 0; i < comm.size() / width; ++i) column_members.push_back(i * width + column);
  EXPECT_EQ(members(**rows, comm.rank()), row_members);
  EXPECT_EQ(members(**columns, comm.rank()), column_members);
  ASSERT_TRUE(comm.barrier(ample()).ok());
}

void split_orders_by_key(Communicator& comm) {
  auto reversed = comm.split(0, -comm.rank(), ample());
  ASSERT_TRUE(reversed.ok());
  EXPECT_EQ((*reversed)->rank(), comm.size() - 1 - comm.rank());
  auto again = (*reversed)->split(0, 0, ample());  // equal keys keep the order
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->rank(), (*reversed)->rank());
  std::vector<int> expected(static_cast<size_t>(comm.size()));
  std::iota(expected.rbegin(), expected.rend(), 0);
  EXPECT_EQ(members(**again, comm.rank()), expected);
}

void communicators_do_not_mix_messages(Communicator& comm) {
  auto first = comm.split(0, comm.rank(), ample());
  auto second = comm.split(0, -comm.rank(), ample());
  ASSERT_TRUE(first.ok() && second.ok());
  for (float round = 0; round < 50; ++round) {
    std::vector<float> a(3, round), b(3, round + 1), c(5000, round + 2);
    ASSERT_TRUE((*first)->all_reduce_sum(std::span(a), ample()).ok());
    ASSERT_TRUE((*second)->all_reduce_sum(std::span(b), ample()).ok());
    ASSERT_TRUE(comm.all_reduce_sum(std::span(c), ample()).ok());
    const auto ranks = static_cast<float>(comm.size());
    EXPECT_EQ(a.back(), ranks * round);
    EXPECT_EQ(b.back(), ranks * (round + 1));
    EXPECT_EQ(c.back(), ranks * (round + 2));
  }
}

void a_missing_rank_means_deadline_and_broken(Communicator& comm) {
  if (comm.size() == 1 || comm.rank() == comm.size() - 1) return;
  // To ranks that still wait, ranks that gave up count as lost, if the implementation can tell.
  const auto is_expected = [](Errc code) {
    return code == Errc::kDeadlineExceeded || code == Errc::kPeerLost;
  };
  auto late = comm.barrier(Deadline::after(milliseconds(50)));
  ASSERT_FALSE(late.ok());
  EXPECT_TRUE(is_expected(late.error().code)) << late.error().to_string();

  std::vector<float> data(10, 1.0f);
  auto after = comm.all_reduce_sum(std::span(data), ample());
  ASSERT_FALSE(after.ok());
  EXPECT_EQ(after.error().message, late.error().message);
  EXPECT_EQ(data, std::vector<float>(10, 1.0f));
  EXPECT_EQ(comm.split(0, 0, ample()).ok(), false);
}

void every_collective_fails_when_a_rank_is_missing(Communicator& comm, int call) {
  if (comm.size() == 1 || comm.rank() == comm.size() - 1) return;
  std::vector<float> data(30'000, 1.0f);
  std::vector<std::byte> small(100), all(100 * static_cast<size_t>(comm.size()));
  const std::vector<int64_t> counts(static_cast<size_t>(comm.size()), 100);
  const auto deadline = Deadline::after(milliseconds(50));
  Result<void> result;
  if (call == 0) result = comm.broadcast(small, comm.size() - 1, deadline);
  if (call == 1) result = comm.all_reduce_sum(std::span(data), deadline);
  if (call == 2) result = comm.all_gather(small, all, counts, deadline);
  if (call == 3) {
    auto child = comm.split(0, 0, deadline);
    result = child.status();
  }
  EXPECT_FALSE(result.ok());
}

void abort_wakes_the_waiting_call(Communicator& comm) {
  if (comm.size() == 1 || comm.rank() != 0) return;
  std::thread other([&] { comm.abort(); });
  auto result = comm.barrier(ample());
  other.join();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Errc::kCancelled) << result.error().to_string();
  auto later = comm.barrier(ample());
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().code, Errc::kCancelled);
}

void a_communicator_and_its_splits_break_together(Communicator& comm) {
  auto child = comm.split(0, comm.rank(), ample());
  ASSERT_TRUE(child.ok());
  (*child)->abort();
  auto result = comm.barrier(ample());
  ASSERT_FALSE(result.ok());
}

void stats_count_what_came_from_others(Communicator& comm) {
  const std::vector<int64_t> counts(static_cast<size_t>(comm.size()), 1000);
  expect_all_gather(comm, counts);
  EXPECT_EQ(comm.stats().calls, 1);
  EXPECT_EQ(comm.stats().bytes_received, 1000 * (comm.size() - 1));
}

}  // namespace

std::vector<CommunicatorCase> communicator_contract() {
  std::vector<CommunicatorCase> cases = {
      {"BroadcastBringsTheRootsBytes", broadcast_brings_the_roots_bytes},
      {"AllReduceOfFloatsIsExact", all_reduce_is_exact<float>},
      {"AllReduceOfDoublesIsExact", all_reduce_is_exact<double>},
      {"AllReduceSumsInRankOrder", all_reduce_sums_in_rank_order},
      {"AllGatherTakesUnevenCounts", all_gather_takes_uneven_counts},
      {"AllGatherWorksInPlace", all_gather_works_in_place},
      {"SplitMakesRowsAndColumns", split_makes_rows_and_columns},
      {"SplitOrdersByKey", split_orders_by_key},
      {"CommunicatorsDoNotMixMessages", communicators_do_not_mix_messages},
      {"AMissingRankMeansDeadlineAndBroken", a_missing_rank_means_deadline_and_broken},
      {"AbortWakesTheWaitingCall", abort_wakes_the_waiting_call},
      {"ACommunicatorAndItsSplitsBreakTogether", a_communicator_and_its_splits_break_together},
      {"StatsCountWhatCameFromOthers", stats_count_what_came_from_others},
  };
  const char* const calls[] = {"Broadcast", "AllReduce", "AllGather", "Split"};
  for (int call = 0; call < 4; ++call) {
    cases.push_back({std::string(calls[call]) + "FailsWhenARankIsMissing", [call](auto& comm) {
                       every_collective_fails_when_a_rank_is_missing(comm, call);
                     }});
  }
  return cases;
}

}  // namespace millrace::comm
