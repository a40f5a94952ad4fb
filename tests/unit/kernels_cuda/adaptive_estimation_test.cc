#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/estimation/page_lists.h"
#include "kernels/cuda/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels/needle_layer.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

struct Outliers {
  int32_t rows = 4;
  int32_t pages = 2;
};

class AdaptiveEstimation : public GpuCase {
 protected:
  std::vector<HeadLists> build(EstimationCase& c, const std::vector<RowTile>& tiles,
                               const std::vector<int32_t>& heads, const std::vector<float>& gamma,
                               Outliers outliers = {}, int64_t max_blocks = 1 << 20) {
    DeviceLayer layer(c);
    DeviceIndex index({.num_heads = c.shape().num_query_heads,
                       .num_tiles = std::ssize(tiles),
                       .max_blocks = max_blocks});
    const void* q = layer.rows_of(tiles);
    run([&](Context& context) {
      build_adaptive({.q = q,
                      .num_query_heads = c.shape().num_query_heads,
                      .scale = c.scale(),
                      .kv = layer.kv(),
                      .tiles = tiles,
                      .heads = heads,
                      .gamma = gamma,
                      .row_outliers = outliers.rows,
                      .page_outliers = outliers.pages,
                      .index = index.view()},
                     context);
    });
    EXPECT_TRUE(index.guards_intact());
    std::vector<HeadLists> lists;
    for (const int32_t head : heads) lists.push_back(index.lists(head));
    return lists;
  }
  HeadLists build(EstimationCase& c, float gamma, int64_t max_blocks = 1 << 20) {
    return build(c, tile_rows(c.shape().num_tokens), {0}, {gamma}, {}, max_blocks).front();
  }

  // Against the reference on the same case.
  ListDifference differences(EstimationCase& c, const std::vector<int32_t>& heads,
                             const std::vector<float>& gamma, Outliers outliers = {}) {
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
                         .gamma = gamma,
                         .row_outliers = outliers.rows,
                         .page_outliers = outliers.pages,
                         .index = expected.view()});
    const auto actual = build(c, tiles, heads, gamma, outliers);
    ListDifference all;
    for (size_t i = 0; i < heads.size(); ++i) {
      const auto found = compare_blocks(actual[i], expected.lists(heads[i]), tiles);
      all.different += found.different;
      all.total += found.total;
    }
    return all;
  }
};

EstimationShape shape_of(int64_t num_tokens, int32_t head_dim = 64) {
  return {.num_tokens = num_tokens, .head_dim = head_dim, .dtype = DType::kBFloat16};
}

// Means in float16 are off by up to 2^-12 and powers of two by 2^-22, so a page whose mass decides
// whether gamma is reached may flip. On random data with nearly equal pages that is at most one
// block in two hundred.
void expect_few_flips(const ListDifference& found) {
  EXPECT_LE(found.different * 200, found.total);
}

class AdaptiveEstimationIn : public AdaptiveEstimation,
                             public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(AdaptiveEstimationIn);

TEST_P(AdaptiveEstimationIn, ListsAreThoseOfTheReferenceButForFlipsOfRounding) {
  ListDifference all;
  for (const int32_t head_dim : {64, 128}) {
    for (const int64_t num_tokens : {1, 2, 63, 64, 65, 66, 127, 130, 1000, 1536, 8191}) {
      EstimationCase c({.num_tokens = num_tokens,
                        .num_query_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = GetParam()},
                       32);
      const auto found = differences(c, {3, 0, 2}, {0.5F, 0.9F, 1.0F});
      all.different += found.different;
      all.total += found.total;
    }
  }
  expect_few_flips(all);
}

TEST_F(AdaptiveEstimation, FollowsTheReferenceForAnyNumberOfRepresentatives) {
  EstimationCase c(shape_of(777), 33);
  ListDifference all;
  for (const Outliers& outliers : std::vector<Outliers>{
           {0, 0}, {0, 3}, {3, 0}, {8, 4}, {12, 1}, {64, 64}, {100, 1}, {1, 100}}) {
    SCOPED_TRACE(testing::Message() << outliers.rows << " rows, " << outliers.pages << " keys");
    const auto found = differences(c, {0}, {0.6F}, outliers);
    EXPECT_LE(found.different, 1 + found.total / 20);
    all.different += found.different;
    all.total += found.total;
  }
  expect_few_flips(all);
}

TEST_F(AdaptiveEstimation, GammaOneIsEverything) {
  EstimationCase c(shape_of(1000), 36);
  for (const auto& list : build(c, 1.0F).blocks) {
    EXPECT_EQ(list, std::vector<int32_t>{kDenseTile});
  }
}

TEST_F(AdaptiveEstimation, EqualPagesAreTakenFromTheFirst) {
  EstimationCase c(shape_of(640), 38);
  scale_queries(c, 0.0F);  // every page of 64 keys has the same mass
  // Of 10 pages 4 reach 0.35; the diagonal and its neighbour are forced.
  EXPECT_EQ(build(c, 0.35F).blocks.back(), (std::vector<int32_t>{0, 1, 2, 3, 8, 9}));
}

TEST_F(AdaptiveEstimation, FuturePagesDoNotDrownTheRowsOfEarlierTiles) {
  // Page 5 outweighs every other by 2^600: tiles before it must not see their masses vanish.
  EstimationCase c(shape_of(640), 39);
  EstimationCase plain(shape_of(640), 39);
  for (int64_t t = 0; t < 640; ++t) c.q(t, 0, 0) = plain.q(t, 0, 0) = 8;
  for (int64_t t = 320; t < 384; ++t) c.k(0, t, 0) = 400;
  const HeadLists with = build(c, 0.5F);
  const HeadLists without = build(plain, 0.5F);
  for (size_t tile = 0; tile < 5; ++tile) EXPECT_EQ(with.blocks[tile], without.blocks[tile]);
  for (size_t tile = 7; tile < 10; ++tile) {
    const auto last = static_cast<int32_t>(tile);
    EXPECT_EQ(with.blocks[tile], (std::vector<int32_t>{0, 5, last - 1, last}));
  }
}

TEST_P(AdaptiveEstimationIn, FindsNeedlesByTheOutliersOfBothSides) {
  constexpr int kNeedles = 7;
  EstimationCase c = needle_layer(GetParam(), kNeedles);
  const auto num_found = [&](Outliers outliers) {
    const auto lists = build(c, tile_rows(kNeedleTokens), {0}, {0.8F}, outliers).front();
    return num_needles_found(lists, kNeedles);
  };
  EXPECT_EQ(num_found({4, 2}), kNeedles);
  EXPECT_EQ(num_found({1, 1}), kNeedles);
  EXPECT_LE(num_found({0, 1}), 3);
}

TEST_F(AdaptiveEstimation, TileWhoseListDoesNotFitIsDense) {
  EstimationCase c(shape_of(1280), 39);
  scale_queries(c, 4.0F);
  EXPECT_GT(expect_lists_that_fit(build(c, 0.3F, 30), build(c, 0.3F), 30), 0);
}

TEST_P(AdaptiveEstimationIn, RanksWithTheirStripesAndHeadsFindWhatOneRankFinds) {
  EstimationCase c({.num_tokens = 3000,
                    .num_query_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = 128,
                    .dtype = GetParam()},
                   40);
  const std::vector<int32_t> heads = c.all_heads();
  const std::vector<float> gamma(8, 0.6F);
  const auto whole = build(c, tile_rows(3000), heads, gamma);
  EXPECT_EQ(build(c, tile_rows(3000), heads, gamma), whole) << "in a second run";
  for (const RankTiles& owned : ranks_of_two_and_four(3000)) {
    for (const int32_t head : {1, 6}) {
      const auto part = build(c, owned.tiles, {head}, {0.6F}).front();
      expect_part_of_whole(part, owned, whole[static_cast<size_t>(head)]);
    }
  }
}

TEST_F(AdaptiveEstimation, ManyHeadsAndTilesGoThroughInBatches) {
  EstimationCase c({.num_tokens = 9000,
                    .num_query_heads = 6,
                    .num_kv_heads = 2,
                    .head_dim = 64,
                    .dtype = DType::kBFloat16},
                   44);
  const auto tiles = tile_rows(9000);
  const std::vector<int32_t> heads = {0, 5, 3};
  const std::vector<float> gamma = {0.3F, 0.6F, 0.45F};
  DeviceLayer layer(c);
  const auto build_within = [&](int64_t score_bytes) {
    DeviceIndex index({.num_heads = 6, .num_tiles = std::ssize(tiles), .max_blocks = 1 << 20});
    const void* q = layer.rows_of(tiles);
    run([&](Context& context) {
      build_page_lists({.q = q,
                        .num_query_heads = 6,
                        .scale = 0.125F,
                        .kv = layer.kv(),
                        .tiles = tiles,
                        .index = index.view(),
                        .row_outliers = 3,
                        .page_outliers = 2,
                        .heads = heads,
                        .gamma = gamma,
                        .score_bytes = score_bytes},
                       context);
    });
    EXPECT_TRUE(index.guards_intact());
    std::vector<HeadLists> lists;
    for (const int32_t head : heads) lists.push_back(index.lists(head));
    return lists;
  };
  const auto whole = build_within(kScoreBytes);
  // All heads of some tiles; two heads of one tile; one head of one tile, though it does not fit.
  for (const int64_t score_bytes : {200000, 1600, 1}) {
    EXPECT_EQ(build_within(score_bytes), whole) << score_bytes << " bytes";
  }
}

TEST_F(AdaptiveEstimation, NotANumberMakesTilesDenseInsteadOfWrong) {
  EstimationCase c(shape_of(640), 42);
  c.k(0, 3 * 64 + 5, 2) = std::nanf("");
  const HeadLists lists = build(c, 0.5F);
  for (size_t tile = 3; tile < 10; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

TEST_F(AdaptiveEstimation, KeysBeyondFloat16MakeTilesDenseInsteadOfWrong) {
  EstimationCase c(shape_of(640), 43);
  c.k(0, 3 * 64 + 5, 2) = 1e6F;
  const HeadLists lists = build(c, 0.5F);
  for (size_t tile = 3; tile < 10; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
