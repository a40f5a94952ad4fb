// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/units.h"

namespace millrace::engine {
namespace {

TEST(Partition, DealsStripesInSnakeOrder) {
  const Partition partition(8 * 64, 2, 64);
  // Stripes 0..7 go to 0 1 1 0 0 1 1 0.
  EXPECT_EQ(partition.ranges(0), (std::vector<TokenRange>{{0, 64}, {192, 320}, {448, 512}}));
  EXPECT_EQ(partition.ranges(1), (std::vector<TokenRange>{{64, 192}, {320, 448}}));
}

TEST(Partition, GivesEveryTokenOneOwnerThatHoldsItWhereItSays) {
  for (const int64_t tokens : {1, 63, 64, 65, 1000, 4097}) {
    for (const int ranks : {1, 2, 3, 8}) {
      const Partition partition(tokens, ranks, 128);
      std::vector<int> seen(static_cast<size_t>(tokens), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto positions = partition.positions(rank);
        EXPECT_EQ(static_cast<int64_t>(positions.size()), partition.num_tokens(rank));
        for (size_t row = 0; row < positions.size(); ++row) {
          ++seen[static_cast<size_t>(positions[row])];
          EXPECT_EQ(partition.owner(positions[row]), rank);
          EXPECT_EQ(partition.local_row(rank, positions[row]), static_cast<int64_t>(row));
        }
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(tokens), 1));
    }
  }
}

TEST(Partition, TilesAndPagesAreThoseOfTheWholePrompt) {
  const Partition partition(1000, 3, 128);
  std::vector<int64_t> tile_positions, pages;
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& tile : partition.tiles(rank)) tile_positions.push_back(tile.position);
    const auto own = partition.pages(rank);
    pages.insert(pages.end(), own.begin(), own.end());
  }
  std::sort(tile_positions.begin(), tile_positions.end());
  std::sort(pages.begin(), pages.end());
  std::vector<int64_t> expected(16);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(pages, expected);
  for (auto& page : expected) page *= 64;
  EXPECT_EQ(tile_positions, expected);
}

TEST(Partition, GivesRanksTheSameNumberOfPagesButForOne) {
  for (const int64_t tokens : {1, 1000, 4097, 131071, 524288}) {
    for (const int ranks : {2, 3, 8}) {
      const Partition partition(tokens, ranks, Partition::default_stripe_tokens(tokens));
      const auto pages = ceil_div(tokens, kernels::kPageTokens);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto own = std::ssize(partition.pages(rank));
        EXPECT_GE(own, pages / (2 * ranks) * 2) << tokens << " tokens, rank " << rank;
        EXPECT_LE(own, ceil_div(pages, int64_t{ranks})) << tokens << " tokens, rank " << rank;
      }
    }
  }
}

TEST(Partition, LongStripesButThoseOfTheFirstRoundAreWholeGroupsOfRows) {
  constexpr int kRanks = 8;
  const Partition partition(131072, kRanks, 1024);
  const int64_t first_round = 2 * kRanks * partition.ranges(0).front().size();
  for (int rank = 0; rank < kRanks; ++rank) {
    int num_later = 0;
    for (const auto& range : partition.ranges(rank)) {
      if (range.begin < first_round) continue;
      ++num_later;
      EXPECT_EQ(range.size() % kernels::kGroupRows, 0) << "rank " << rank << ", " << range.begin;
      EXPECT_LE(range.size(), 2 * 1152) << "rank " << rank << ", " << range.begin;
    }
    EXPECT_GE(num_later, 7) << "rank " << rank;
  }
}

// Behind a prefix: every token from there on has one owner, and short ends take turns.
TEST(Partition, DealsWhatComesBehindAPrefix) {
  const Partition partition(1200, 3, 64, 640);
  std::vector<int> owned(1200);
  for (int rank = 0; rank < 3; ++rank) {
    for (const int32_t position : partition.positions(rank)) ++owned[static_cast<size_t>(position)];
  }
  for (int64_t position = 0; position < 1200; ++position) {
    EXPECT_EQ(owned[static_cast<size_t>(position)], position < 640 ? 0 : 1) << position;
  }
  EXPECT_EQ(partition.owner(640), 10 % 3);
  EXPECT_EQ(Partition(704, 3, 64, 640).owner(640), 1);
  EXPECT_EQ(Partition(768, 3, 64, 704).owner(704), 2);
}

TEST(Partition, GivesEachRankTwoStripesWhereThePromptIsShort) {
  const Partition partition(4096, 4, Partition::default_stripe_tokens(4096));
  EXPECT_EQ(partition.ranges(1), (std::vector<TokenRange>{{512, 1024}, {3072, 3584}}));
}

}  // namespace
}  // namespace millrace::engine
