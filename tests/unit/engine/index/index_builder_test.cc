// SPDX-License-Identifier: Apache-2.0
// For the same Q and K, the lists are the same byte for byte, whatever the number of
// context-parallel ranks: each rank has all bands and columns, and the blocks of its own row tiles.
#include "engine/index/index_builder.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <utility>

#include "engine/exchange/partition.h"
#include "engine/ranks/device_groups.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/support/random_data.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

constexpr int32_t kHeadDim = 16;
constexpr int32_t kQueryHeads = 8;
constexpr int32_t kKvHeads = 4;
// Not a multiple of 64, so that the last tile and page are partial. With stripes of one page, three
// ranks and five ranks have different numbers of pages.
constexpr int64_t kTokens = 1483;
constexpr int64_t kQueryRow = int64_t{kQueryHeads} * kHeadDim;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}

struct Layer {
  std::vector<float> q = test::random_normals(1, kTokens* kQueryRow, 2.0F);
  std::vector<float> k = test::random_normals(2, int64_t{kKvHeads} * kTokens * kHeadDim);
};

// Every pattern, some twice with different parameters.
plan::HeadPlan plan_of_all_patterns() {
  plan::HeadPlan plan(/*num_layers=*/1, kQueryHeads, {});
  int32_t head = 0;
  for (const auto* text :
       {"vertical-slash:64,128", "adaptive:0.6", "block-sparse:4", "vertical-slash:30,10",
        "a-shape:64,128", "adaptive:0.3,0.8,4", "vertical-slash:100,1", "dense"}) {
    plan.at(0, head++) = must(plan::parse_head_pattern(text));
  }
  return plan;
}

struct BandsAndColumns {
  std::vector<std::pair<int32_t, int32_t>> bands;
  std::vector<int32_t> columns;

  bool operator==(const BandsAndColumns&) const = default;
};

// The lists of one rank, or of all ranks together.
struct Lists {
  std::vector<BandsAndColumns> heads;
  std::map<std::pair<int32_t, int64_t>, std::vector<int32_t>> blocks;  // by head and tile position
};

Lists lists_of(const kernels::IndexView& index, const std::vector<kernels::RowTile>& tiles) {
  Lists lists;
  for (int32_t h = 0; h < index.shape.num_heads; ++h) {
    const auto head = index.head(h);
    auto& own = lists.heads.emplace_back();
    for (int32_t i = 0; i < head.num_bands; ++i) {
      own.bands.emplace_back(head.bands[i].lo, head.bands[i].hi);
    }
    own.columns.assign(head.columns, head.columns + head.num_columns);
    for (size_t t = 0; t < tiles.size(); ++t) {
      auto& blocks = lists.blocks[{h, tiles[t].position}];
      const int32_t count = head.block_count[t];
      if (count == kernels::kDenseTile) {
        blocks = {kernels::kDenseTile};
      } else {
        blocks.assign(head.blocks + head.block_begin[t], head.blocks + head.block_begin[t] + count);
      }
    }
  }
  return lists;
}

Lists build_on_rank(const Layer& layer, std::unique_ptr<comm::Communicator> world, int num_ranks) {
  const auto grid = must(RankGrid::create(std::move(world), {.tp = 1, .cp = num_ranks}, ample()));
  const auto device = kernels::make_cpu_device({.num_threads = 1});
  const auto groups = must(make_device_groups(*device, grid, /*own_gpu=*/false, ample()));
  const auto plan = plan_of_all_patterns();
  const Partition partition(kTokens, num_ranks, /*stripe_tokens=*/64);
  const auto tiles = partition.tiles(grid.cp().rank());
  std::vector<float> own_q;
  for (const int32_t position : partition.positions(grid.cp().rank())) {
    const auto row = layer.q.begin() + position * kQueryRow;
    own_q.insert(own_q.end(), row, row + kQueryRow);
  }
  const auto index = must(LayerIndex::create(*device, plan, 0, kQueryHeads, kTokens, tiles));
  auto builder = must(IndexBuilder::create(
      *device, *groups.cp, plan, {.first = 0, .count = kQueryHeads}, kTokens, index.view().shape));
  const int64_t first_last = kTokens - kernels::kLastRows;
  const auto built = builder.build(0,
                                   {.q = own_q.data(),
                                    .num_rows = partition.num_tokens(grid.cp().rank()),
                                    .num_query_heads = kQueryHeads,
                                    .scale = 0.25F},
                                   tiles,
                                   {.q = layer.q.data() + first_last * kQueryRow,
                                    .num_rows = kernels::kLastRows,
                                    .first_position = first_last,
                                    .num_query_heads = kQueryHeads,
                                    .scale = 0.25F},
                                   {.k = layer.k.data(),
                                    .dtype = DType::kFloat32,
                                    .num_kv_heads = kKvHeads,
                                    .head_dim = kHeadDim,
                                    .num_tokens = kTokens,
                                    .token_stride = kTokens},
                                   index.view(), ample());
  MR_CHECK(built.ok(), "{}", built.error().to_string());
  return lists_of(index.view(), tiles);
}

// By rank.
std::vector<Lists> build(const Layer& layer, int num_ranks) {
  std::vector<Lists> ranks(static_cast<size_t>(num_ranks));
  test::run_ranks(num_ranks, [&](std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    ranks[rank] = build_on_rank(layer, std::move(world), num_ranks);
  });
  return ranks;
}

class IndexBuilderTest : public testing::TestWithParam<int> {};

TEST_P(IndexBuilderTest, GivesEachRankTheBandsAndColumnsOfOneRank) {
  const Layer layer;
  const auto alone = build(layer, 1).front();
  // Otherwise the test would also pass with empty lists.
  for (const size_t head : {0, 3, 6}) {
    EXPECT_FALSE(alone.heads[head].bands.empty()) << head;
    EXPECT_FALSE(alone.heads[head].columns.empty()) << head;
  }
  const auto ranks = build(layer, GetParam());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t head = 0; head < alone.heads.size(); ++head) {
      EXPECT_EQ(ranks[rank].heads[head], alone.heads[head]) << "rank " << rank << " head " << head;
    }
  }
}

TEST_P(IndexBuilderTest, GivesEachRankTheBlocksOfOneRankForItsRowTiles) {
  const Layer layer;
  const auto alone = build(layer, 1).front();
  for (const int32_t head : {1, 2, 5}) {
    EXPECT_FALSE(alone.blocks.at({head, 1024}).empty()) << head;
  }
  std::map<std::pair<int32_t, int64_t>, std::vector<int32_t>> together;
  for (const auto& rank : build(layer, GetParam())) {
    for (const auto& [tile, blocks] : rank.blocks) {
      EXPECT_TRUE(together.emplace(tile, blocks).second) << "two ranks have it";
    }
  }
  EXPECT_EQ(together, alone.blocks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, IndexBuilderTest, testing::Values(2, 3, 5, 8));

}  // namespace
}  // namespace millrace::engine
