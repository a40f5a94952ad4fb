// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/adaptive/adaptive.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels/estimation/needle_layer.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

struct Settings {
  int32_t sampled_rows = kSampledRows;
  int64_t max_blocks = 1 << 20;
  AdaptiveMemory memory = {};
};

class AdaptiveEstimation : public GpuCase {
 protected:
  std::vector<HeadLists> build(EstimationCase& c, const std::vector<RowTile>& tiles,
                               const std::vector<int32_t>& heads,
                               const std::vector<AdaptiveRule>& rules,
                               const Settings& settings = {}) {
    DeviceLayer layer(c);
    DeviceIndex index({.num_heads = c.shape().num_query_heads,
                       .num_tiles = std::ssize(tiles),
                       .max_blocks = settings.max_blocks});
    const void* q = layer.rows_of(tiles);
    run([&](Context& context) {
      build_adaptive_within(settings.memory,
                            {.q = q,
                             .num_query_heads = c.shape().num_query_heads,
                             .scale = c.scale(),
                             .kv = layer.kv(),
                             .tiles = tiles,
                             .heads = heads,
                             .rules = rules,
                             .sampled_rows = settings.sampled_rows,
                             .index = index.view()},
                            context);
    });
    EXPECT_TRUE(index.guards_intact());
    std::vector<HeadLists> lists;
    for (const int32_t head : heads) lists.push_back(index.lists(head));
    return lists;
  }
  HeadLists build(EstimationCase& c, const AdaptiveRule& rule, const Settings& settings = {}) {
    return build(c, tile_rows(c.shape().num_tokens), {0}, {rule}, settings).front();
  }

  // Compared with the reference on the same case.
  ListDifference differences(EstimationCase& c, const std::vector<int32_t>& heads,
                             const std::vector<AdaptiveRule>& rules,
                             int32_t sampled_rows = kSampledRows) {
    const std::vector<RowTile> tiles = tile_rows(c.shape().num_tokens);
    IndexStorage expected({.num_heads = c.shape().num_query_heads,
                           .num_tiles = std::ssize(tiles),
                           .max_blocks = 1 << 20});
    ref::build_adaptive({.q = c.rows(),
                         .num_query_heads = c.shape().num_query_heads,
                         .scale = c.scale(),
                         .kv = c.kv(),
                         .tiles = tiles,
                         .heads = heads,
                         .rules = rules,
                         .sampled_rows = sampled_rows,
                         .index = expected.view()});
    const auto actual = build(c, tiles, heads, rules, {.sampled_rows = sampled_rows});
    ListDifference all;
    for (size_t i = 0; i < heads.size(); ++i) {
      all += compare_blocks(actual[i], expected.lists(heads[i]), tiles);
    }
    return all;
  }
};

EstimationShape shape_of(int64_t num_tokens, int32_t head_dim = 64) {
  return {.num_tokens = num_tokens, .head_dim = head_dim, .dtype = DType::kBFloat16};
}

// Masses are those of the reference, but estimates and sums are off by a rounding. So a page whose estimate is at the
// threshold may be scanned or not, and a page whose mass decides whether a share is reached may be taken or
// not. On random data with nearly equal pages this affects at most one block in two hundred.
void expect_few_flips(const ListDifference& found) {
  EXPECT_LE(found.different * 200, found.total);
}

class AdaptiveEstimationIn : public AdaptiveEstimation,
                             public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(AdaptiveEstimationIn);

// Around the borders of a page, of a step of four and, with 16 samples, of a unit of four tiles;
// and beyond a group of 64 pages.
TEST_P(AdaptiveEstimationIn, ListsAreThoseOfTheReferenceButForFlipsOfRounding) {
  ListDifference all;
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int64_t num_tokens :
         {1, 2, 3, 63, 64, 65, 66, 127, 128, 130, 255, 256, 257, 320, 513, 1000, 1536}) {
      EstimationCase c({.num_tokens = num_tokens,
                        .num_query_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = GetParam()},
                       32);
      all += differences(c, {3, 0, 2}, {{.gamma = 0.5F}, {.gamma = 0.9F}, {.gamma = 1}});
    }
  }
  expect_few_flips(all);
}

TEST_P(AdaptiveEstimationIn, LongerListsAreThoseOfTheReferenceButForFlipsOfRounding) {
  for (const int32_t head_dim : {64, 128, 256}) {
    const EstimationShape shape{
        .num_tokens = 4095 + head_dim, .head_dim = head_dim, .dtype = GetParam()};
    EstimationCase c(shape, 31);
    expect_few_flips(differences(c, {0}, {{.gamma = 0.7F}}, 4));
  }
}

TEST_F(AdaptiveEstimation, FollowsTheReferenceForAnyNumberOfSampledRows) {
  EstimationCase c(shape_of(777), 33);
  scale_queries(c, 3.0F);
  ListDifference all;
  for (const int32_t sampled_rows : {1, 2, 3, 12, 16, 33, 63, 64}) {
    SCOPED_TRACE(sampled_rows);
    const auto found = differences(c, {0}, {{.gamma = 0.6F}}, sampled_rows);
    EXPECT_LE(found.different, 1 + found.total / 20);
    all += found;
  }
  expect_few_flips(all);
}

TEST_F(AdaptiveEstimation, FollowsTheReferenceForAnyRule) {
  EstimationCase c(shape_of(1300, 128), 34);
  scale_queries(c, 3.0F);
  ListDifference all;
  for (const AdaptiveRule& rule : std::vector<AdaptiveRule>{{.gamma = 0},
                                                            {.gamma = 0.8F, .enough = 0.5F},
                                                            {.gamma = 1, .enough = 0.9F},
                                                            {.gamma = 0.1F, .min_recall = 0.6F},
                                                            {.gamma = 0, .min_recall = 0.9F},
                                                            {.min_recall = 1}}) {
    SCOPED_TRACE(testing::Message()
                 << rule.gamma << ", " << rule.enough << ", " << rule.min_recall);
    const auto found = differences(c, {0}, {rule});
    EXPECT_LE(found.different, 1 + found.total / 20);
    all += found;
  }
  expect_few_flips(all);
}

TEST_F(AdaptiveEstimation, RulesThatTakeEverythingMakeTilesDense) {
  EstimationCase c(shape_of(1000), 36);
  for (const AdaptiveRule& rule : {AdaptiveRule{.gamma = 1}, AdaptiveRule{.min_recall = 1}}) {
    for (const auto& list : build(c, rule).blocks) {
      EXPECT_EQ(list, std::vector<int32_t>{kDenseTile});
    }
  }
}

TEST_F(AdaptiveEstimation, EqualPagesAreTakenFromTheFirst) {
  EstimationCase c(shape_of(640), 38);
  scale_queries(c, 0.0F);  // every page has the same mass
  // Of 10 pages three are kept; 3 of the other seven reach 0.35.
  EXPECT_EQ(build(c, {.gamma = 0.35F}).blocks.back(), (std::vector<int32_t>{0, 1, 2, 3, 8, 9}));
}

TEST_F(AdaptiveEstimation, FuturePagesDoNotDrownTheRowsOfEarlierTiles) {
  // Page 5 outweighs every other page by 2^600. Tiles before it must not see their masses vanish.
  EstimationCase c(shape_of(640), 39);
  EstimationCase plain(shape_of(640), 39);
  for (int64_t t = 0; t < 640; ++t) c.q(t, 0, 0) = plain.q(t, 0, 0) = 8;
  for (int64_t t = 320; t < 384; ++t) c.k(0, t, 0) = 400;
  const HeadLists with = build(c, {.gamma = 0.5F});
  const HeadLists without = build(plain, {.gamma = 0.5F});
  for (size_t tile = 0; tile < 5; ++tile) EXPECT_EQ(with.blocks[tile], without.blocks[tile]);
  for (size_t tile = 7; tile < 10; ++tile) {
    const auto last = static_cast<int32_t>(tile);
    EXPECT_EQ(with.blocks[tile], (std::vector<int32_t>{0, 5, last - 1, last}));
  }
}

// What follows a prefix must not change what the tiles of the prefix attend to.
TEST_P(AdaptiveEstimationIn, TilesDependOnThePrefixAlone) {
  constexpr int64_t kPrefix = 1100;
  const auto with_rest = [&](int64_t num_tokens, uint64_t seed) {
    EstimationCase prefix({.num_tokens = kPrefix, .head_dim = 128, .dtype = GetParam()}, 46);
    EstimationCase c({.num_tokens = num_tokens, .head_dim = 128, .dtype = GetParam()}, seed);
    for (int64_t t = 0; t < kPrefix; ++t) {
      for (int32_t d = 0; d < 128; ++d) {
        c.q(t, 0, d) = prefix.q(t, 0, d);
        c.k(0, t, d) = prefix.k(0, t, d);
      }
    }
    HeadLists lists = build(c, {.gamma = 0.6F});
    lists.blocks.resize(kPrefix / kTileRows);
    return lists.blocks;
  };
  const auto expected = with_rest(kPrefix, 1);
  EXPECT_EQ(with_rest(1101, 2), expected);
  EXPECT_EQ(with_rest(1500, 3), expected);
  EXPECT_EQ(with_rest(5000, 4), expected);
}

// Needles are asked for by one row of a tile, the one furthest from the tile's mean.
TEST_P(AdaptiveEstimationIn, FindsWhatASingleRowAsksFor) {
  constexpr int kNeedles = 7;
  const auto num_found = [&](int32_t sampled_rows, float bias) {
    EstimationCase c = needle_layer(GetParam(), kNeedles);
    for (int64_t t = 0; t < kNeedleTokens; ++t) {
      for (const int32_t d : {1, 2, 40, 63}) c.k(0, t, d) += bias;
    }
    return num_needles_found(
        build(c, {.gamma = 0.8F, .enough = 0.999F}, {.sampled_rows = sampled_rows}), kNeedles);
  };
  for (const int32_t rows : {1, 2, 7, 12, 33, 64}) EXPECT_EQ(num_found(rows, 0), kNeedles) << rows;
  // A bias far larger than the differences between keys is absorbed by the page's mean.
  EXPECT_EQ(num_found(16, 50), kNeedles);
}

TEST_F(AdaptiveEstimation, FollowsTheReferenceUnderABiasOfKeys) {
  for (const int32_t head_dim : {128, 256}) {
    EstimationCase c({.num_tokens = 1300, .head_dim = head_dim, .dtype = DType::kFloat16}, 35);
    for (int64_t t = 0; t < 1300; ++t) {
      for (const int32_t d : {0, 7, 64, head_dim - 1}) c.k(0, t, d) += 100;
    }
    expect_few_flips(differences(c, {0}, {{.gamma = 0.6F}}));
  }
}

TEST_F(AdaptiveEstimation, TileWhoseListDoesNotFitIsDense) {
  EstimationCase c(shape_of(1280), 39);
  scale_queries(c, 4.0F);
  const AdaptiveRule rule = {.gamma = 0.05F};
  const auto lists = [&](int64_t max_blocks) {
    return build(c, rule, {.sampled_rows = 4, .max_blocks = max_blocks});
  };
  EXPECT_GT(expect_lists_that_fit(lists(30), lists(1 << 20), 30), 0);
}

TEST_P(AdaptiveEstimationIn, RanksWithTheirStripesAndHeadsFindWhatOneRankFinds) {
  for (const int32_t head_dim : {128, 256}) {
    SCOPED_TRACE(head_dim);
    EstimationCase c({.num_tokens = 3000,
                      .num_query_heads = 8,
                      .num_kv_heads = 2,
                      .head_dim = head_dim,
                      .dtype = GetParam()},
                     40);
    const std::vector<int32_t> heads = c.all_heads();
    const std::vector<AdaptiveRule> rules(8, {.gamma = 0.4F});
    const auto whole = build(c, tile_rows(3000), heads, rules);
    EXPECT_EQ(build(c, tile_rows(3000), heads, rules), whole) << "in a second run";
    for (const RankTiles& owned : ranks_of_two_and_four(3000)) {
      for (const int32_t head : {1, 6}) {
        const auto part = build(c, owned.tiles, {head}, {rules[0]}).front();
        expect_part_of_whole(part, owned, whole[static_cast<size_t>(head)]);
      }
    }
  }
}

TEST_F(AdaptiveEstimation, ManyHeadsAndTilesGoThroughInBatches) {
  EstimationCase c({.num_tokens = 9000,
                    .num_query_heads = 6,
                    .num_kv_heads = 3,
                    .head_dim = 64,
                    .dtype = DType::kBFloat16},
                   44);
  const auto tiles = tile_rows(9000);
  const std::vector<int32_t> heads = {0, 5, 3, 4};
  const std::vector<AdaptiveRule> rules = {
      {.gamma = 0.3F}, {.gamma = 0.6F}, {.gamma = 0.45F}, {.gamma = 0.2F}};
  const auto whole = build(c, tiles, heads, rules);
  // All heads of some tiles; two heads of one tile; one head of one tile, even though it does not
  // fit.
  for (const int64_t batch_bytes : {2'000'000, 20'000, 1}) {
    EXPECT_EQ(build(c, tiles, heads, rules, {.memory = {.batch_bytes = batch_bytes}}), whole)
        << batch_bytes << " bytes";
  }
  // The keys of two kv heads at a time; of one, even though they do not fit.
  for (const int64_t key_bytes : {2 * 9024 * 64, 1}) {
    EXPECT_EQ(build(c, tiles, heads, rules, {.memory = {.key_bytes = key_bytes}}), whole)
        << key_bytes << " bytes of keys";
  }
}

TEST_F(AdaptiveEstimation, NotANumberMakesTilesDenseInsteadOfWrong) {
  EstimationCase c(shape_of(640), 42);
  c.k(0, 3 * 64 + 5, 2) = std::nanf("");
  const HeadLists lists = build(c, {.gamma = 0.05F});
  for (size_t tile = 3; tile < 10; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

TEST_F(AdaptiveEstimation, InfiniteKeysMakeTilesDenseInsteadOfWrong) {
  EstimationCase c(shape_of(640), 43);
  for (int64_t t = 3 * 64; t < 4 * 64; ++t) c.k(0, t, 2) = -INFINITY;
  const HeadLists lists = build(c, {.gamma = 0.05F});
  for (size_t tile = 3; tile < 10; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

// Steps are those of each page and row, so values beyond float16 are as good as any.
TEST_F(AdaptiveEstimation, FollowsTheReferenceBeyondTheRangeOfFloat16) {
  EstimationCase c(shape_of(1280), 45);
  for (int64_t t = 3 * 64; t < 4 * 64; ++t) c.k(0, t, 2) = -1e5F;
  c.q(18 * 64 + 10, 0, 5) = -1e5F;
  const auto found = differences(c, {0}, {{.gamma = 0.05F}});
  EXPECT_LE(found.different, 1 + found.total / 50);
}

TEST_F(AdaptiveEstimation, ARowThatIsNoNumberChangesItsTileAlone) {
  const AdaptiveRule rule = {.gamma = 0.05F};
  EstimationCase plain(shape_of(1280), 45);
  HeadLists expected = build(plain, rule, {.sampled_rows = 4});
  EstimationCase c(shape_of(1280), 45);
  c.q(18 * 64 + 3, 0, 5) = std::nanf("");  // of such a tile the first rows are sampled
  HeadLists lists = build(c, rule, {.sampled_rows = 4});
  EXPECT_EQ(lists.blocks[18], std::vector<int32_t>{kDenseTile});
  lists.blocks[18] = expected.blocks[18] = {};
  EXPECT_EQ(lists.blocks, expected.blocks);
}

}  // namespace
}  // namespace millrace::kernels::cuda
