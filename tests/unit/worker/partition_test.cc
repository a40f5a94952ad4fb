#include "worker/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/units.h"

namespace millrace::worker {
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

TEST(Partition, StripesAreWholePagesAndGiveEachRankTwoWhereThePromptAllows) {
  EXPECT_EQ(Partition::default_stripe_tokens(131072, 8), 512);
  EXPECT_EQ(Partition::default_stripe_tokens(1 << 20, 8), 2048);
  EXPECT_EQ(Partition::default_stripe_tokens(4096, 4), 512);
  EXPECT_EQ(Partition::default_stripe_tokens(1000, 4), 64);
  EXPECT_EQ(Partition::default_stripe_tokens(1, 8), 64);
}

}  // namespace
}  // namespace millrace::worker
