// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels/estimation/block_list_case.h"
#include "tests/unit/kernels/estimation/needle_layer.h"

namespace millrace::kernels {
namespace {

using testing::Contains;

AdaptiveParams params(EstimationCase& c, std::span<const RowTile> tiles,
                      std::span<const int32_t> heads, std::span<const AdaptiveRule> rules,
                      IndexStorage& index) {
  return {.q = c.rows(),
          .num_query_heads = c.shape().num_query_heads,
          .scale = c.scale(),
          .kv = c.kv(),
          .tiles = tiles,
          .heads = heads,
          .rules = rules,
          .index = index.view()};
}

// The pattern's usual rule, somewhat sharper.
constexpr AdaptiveRule kRule = {.gamma = 0.3F, .enough = 0.8F};

struct BuildOptions {
  int32_t sampled_rows = kSampledRows;
  int64_t max_blocks = 1 << 20;
};

HeadLists build(EstimationCase& c, const AdaptiveRule& rule, const BuildOptions& options = {}) {
  const std::vector<RowTile> tiles = tile_rows(c.shape().num_tokens);
  IndexStorage index(shape_for(c, static_cast<int64_t>(tiles.size()), options.max_blocks));
  const std::vector<int32_t> heads = {0};
  AdaptiveParams wanted = params(c, tiles, heads, {&rule, 1}, index);
  wanted.sampled_rows = options.sampled_rows;
  cpu::build_adaptive(wanted, {.num_threads = 2, .simd = cpu::detect_simd()});
  EXPECT_TRUE(index.guards_intact());
  return index.lists(0);
}

size_t num_taken(const HeadLists& lists, size_t tile) {
  const std::vector<int32_t>& list = lists.blocks[tile];
  return list.front() == kDenseTile ? tile + 1 : list.size();
}

size_t num_blocks(const HeadLists& lists) {
  size_t total = 0;
  for (size_t tile = 3; tile < lists.blocks.size(); ++tile) total += num_taken(lists, tile);
  return total;
}

TEST(Adaptive, ListsAreThoseOfTheReference) {
  const std::vector<int32_t> heads = {3, 0, 2, 1};
  const std::vector<AdaptiveRule> rules = {{.gamma = 0.5F},
                                           {.gamma = 0.9F, .enough = 0.7F},
                                           {.gamma = 0.1F, .enough = 0.3F, .min_recall = 0.6F},
                                           {.gamma = 1.0F}};
  const auto params_of = [&](EstimationCase& c, std::span<const RowTile> tiles,
                             IndexStorage& index) { return params(c, tiles, heads, rules, index); };
  expect_lists_of_the_reference({1, 2, 66, 130, 1000, 1536, 3300}, heads, /*seed=*/32, params_of,
                                ref::build_adaptive, cpu::build_adaptive);
}

TEST(Adaptive, FollowsTheReferenceForAnyNumberOfSampledRows) {
  EstimationCase c({.num_tokens = 777}, 33);
  const std::vector<RowTile> tiles = tile_rows(777);
  const std::vector<int32_t> heads = {0};
  const std::vector<AdaptiveRule> rules = {{.gamma = 0.2F}};
  for (const int32_t rows : {1, 2, 3, 12, 16, 33, 63, 64}) {
    IndexStorage expected(shape_for(c, static_cast<int64_t>(tiles.size())));
    AdaptiveParams wanted = params(c, tiles, heads, rules, expected);
    wanted.sampled_rows = rows;
    ref::build_adaptive(wanted);
    IndexStorage actual(shape_for(c, static_cast<int64_t>(tiles.size())));
    wanted.index = actual.view();
    cpu::build_adaptive(wanted, {.num_threads = 2, .simd = cpu::detect_simd()});
    EXPECT_EQ(actual.lists(0), expected.lists(0)) << rows << " rows";
  }
}

// Scores vary more between pages than within one, so that the filter leaves most pages out.
EstimationCase case_of_unlike_pages(int64_t num_tokens, uint64_t seed) {
  EstimationCase c({.num_tokens = num_tokens, .head_dim = 64}, seed);
  const int64_t num_pages = num_tokens / 64 + 1;
  const std::vector<float> means =
      test::random_normals(seed + 1, static_cast<size_t>(num_pages * 64));
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int32_t d = 0; d < 64; ++d) {
      c.q(t, 0, d) *= 3;
      c.k(0, t, d) = 0.5F * c.k(0, t, d) + means[static_cast<size_t>(t / 64 * 64 + d)];
    }
  }
  return c;
}

HeadLists build_by_reference(EstimationCase& c, const AdaptiveRule& rule) {
  const std::vector<RowTile> tiles = tile_rows(c.shape().num_tokens);
  IndexStorage index(shape_for(c, std::ssize(tiles)));
  const std::vector<int32_t> heads = {0};
  ref::build_adaptive(params(c, tiles, heads, {&rule, 1}, index));
  return index.lists(0);
}

// 4,000 tokens are 63 pages, with up to three spans of far pages.
TEST(Adaptive, ListsAreThoseOfTheReferenceIfTheFilterLeavesMostPagesOut) {
  EstimationCase c = case_of_unlike_pages(4000, 53);
  const std::vector<RowTile> tiles = tile_rows(4000);
  const std::vector<int32_t> heads = {0};
  for (const AdaptiveRule& rule : std::vector<AdaptiveRule>{
           {.gamma = 0.2F, .enough = 0.8F}, {.gamma = 0.9F}, {.gamma = 0, .min_recall = 0.5F}}) {
    const HeadLists expected = build_by_reference(c, rule);
    for (const cpu::Context& context : test::contexts()) {
      IndexStorage actual(shape_for(c, std::ssize(tiles)));
      cpu::build_adaptive(params(c, tiles, heads, {&rule, 1}, actual), context);
      EXPECT_EQ(actual.lists(0), expected) << test::to_string(context) << ", " << rule.gamma;
    }
  }
}

// 67 pages. Rows attend to the first key with a score of `sink`, and hardly to others. In the last tile but one, of
// 64 far pages, one row looks up one key of page 30 with a score of 24.5.
EstimationCase lookup_beside_a_sink(float sink) {
  EstimationCase c({.num_tokens = 67 * 64, .head_dim = 64}, 54);
  for (int64_t t = 0; t < 67 * 64; ++t) {
    for (int32_t d = 0; d < 64; ++d) {
      c.q(t, 0, d) *= 0.25F;
      c.k(0, t, d) *= 0.25F;
    }
    c.q(t, 0, 0) = 8;
    c.k(0, t, 0) = 0;
  }
  c.k(0, 0, 0) = sink;
  c.q(66 * 64 + 21, 0, 9) = 14;
  c.k(0, 30 * 64 + 50, 9) = 14;
  return c;
}

// The key that is looked up lies 8 standard deviations above its page's mean, as far as one of 64 can.
TEST(Adaptive, FindsAmong64FarPagesWhatOnlyOneRowLooksUp) {
  for (const float sink : {8.0F, 12.0F, 18.0F}) {
    SCOPED_TRACE(sink);
    EstimationCase c = lookup_beside_a_sink(sink);
    const HeadLists lists = build(c, {.gamma = 0.2F, .enough = 0.8F});
    EXPECT_EQ(lists.blocks[66], (std::vector<int32_t>{0, 30, 65, 66}));
    for (size_t tile = 3; tile < 66; ++tile) EXPECT_EQ(lists.blocks[tile].size(), 3) << tile;
  }
}

// A page's mean absorbs the offset. In int8 without the mean, keys that differ by 1 around an
// offset of 300 would all be equal.
TEST(Adaptive, AnOffsetThatAllKeysShareMovesHardlyAPage) {
  const auto lists = [](float offset) {
    EstimationCase c({.num_tokens = 1920}, 34);
    scale_queries(c, 8.0F);
    for (int64_t t = 0; t < 1920; ++t) {
      for (const int32_t d : {3, 17}) c.k(0, t, d) += offset;
    }
    return build(c, kRule);
  };
  const HeadLists expected = lists(0);
  const HeadLists actual = lists(300);
  int64_t different = 0;
  for (size_t tile = 3; tile < expected.blocks.size(); ++tile) {
    std::vector<int32_t> difference;
    std::set_symmetric_difference(expected.blocks[tile].begin(), expected.blocks[tile].end(),
                                  actual.blocks[tile].begin(), actual.blocks[tile].end(),
                                  std::back_inserter(difference));
    different += std::ssize(difference);
  }
  // At 300 a centre's step is 2.4, so what a page's other channels have in common is left to the differences, whose steps
  // grow by a third: a page at a threshold moves. Without the centre, half of the pages move.
  EXPECT_LE(different * 6, static_cast<int64_t>(num_blocks(expected)));
}

TEST(Adaptive, APrefixIsTheSameWhateverFollows) {
  constexpr int64_t kPrefix = 1024;
  std::vector<HeadLists> all;
  for (const auto& [num_tokens, seed] : std::vector<std::pair<int64_t, uint64_t>>{
           {kPrefix + 70, 50}, {kPrefix + 1000, 51}, {2 * kPrefix, 52}}) {
    EstimationCase prefix({.num_tokens = kPrefix}, 35);
    EstimationCase c({.num_tokens = num_tokens}, seed);
    for (int64_t t = 0; t < kPrefix; ++t) {
      for (int32_t d = 0; d < c.shape().head_dim; ++d) {
        c.q(t, 0, d) = 3 * prefix.q(t, 0, d);
        c.k(0, t, d) = prefix.k(0, t, d);
      }
    }
    all.push_back(build(c, kRule));
  }
  for (size_t tile = 0; tile < kPrefix / kTileRows; ++tile) {
    EXPECT_EQ(all[0].blocks[tile], all[1].blocks[tile]);
    EXPECT_EQ(all[0].blocks[tile], all[2].blocks[tile]);
  }
}

TEST(Adaptive, ARowThatHasEnoughTakesNoMore) {
  EstimationCase c({.num_tokens = 1920}, 36);
  for (int64_t t = 0; t < 1920; ++t) c.q(t, 0, 0) = 40;
  for (int64_t t = 0; t < 64; ++t) c.k(0, t, 0) = 10;  // nearly all mass is on the first page
  const HeadLists lists = build(c, {.gamma = 0.5F, .enough = 0.9F});
  for (int32_t tile = 3; tile < 29; ++tile) {
    EXPECT_EQ(lists.blocks[static_cast<size_t>(tile)], (std::vector<int32_t>{0, tile - 1, tile}));
  }
  const HeadLists all_of_it = build(c, {.gamma = 0.5F, .enough = 1.0F});
  EXPECT_GT(4 * num_blocks(all_of_it), 5 * num_blocks(lists));
}

TEST(Adaptive, MinimumRecallTakesWhatTheRuleLeavesOut) {
  EstimationCase c({.num_tokens = 1920}, 37);
  scale_queries(c, 8.0F);
  AdaptiveRule rule{.gamma = 0.1F, .enough = 0.5F};
  size_t fewer = num_blocks(build(c, rule, {.sampled_rows = 2}));
  for (const float recall : {0.3F, 0.5F, 0.7F}) {
    rule.min_recall = recall;
    const size_t more = num_blocks(build(c, rule, {.sampled_rows = 2}));
    EXPECT_LT(fewer, more) << recall;
    fewer = more;
  }
}

TEST(Adaptive, ListsAreAscendingAndHoldTheForcedPages) {
  EstimationCase c({.num_tokens = 1920}, 34);
  scale_queries(c, 8.0F);  // a few pages hold most of the mass, so that lists are short
  const HeadLists lists = build(c, {.gamma = 0.1F, .enough = 0.8F}, {.sampled_rows = 4});
  int num_lists = 0;
  for (int32_t tile = 3; tile < 30; ++tile) {
    const std::vector<int32_t>& list = lists.blocks[static_cast<size_t>(tile)];
    if (list.front() == kDenseTile) continue;
    ++num_lists;
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end(), std::less_equal<>()));
    EXPECT_EQ(list.front(), 0);
    EXPECT_EQ(list.back(), tile);
    EXPECT_THAT(list, Contains(tile - 1));
  }
  EXPECT_GE(num_lists, 10) << "too few to look at";
}

TEST(Adaptive, FirstThreeTilesHoldOnlyForcedPagesAndAreDense) {
  EstimationCase c({.num_tokens = 640}, 35);
  const HeadLists lists = build(c, {.gamma = 0.1F});
  for (size_t tile = 0; tile < 3; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

TEST(Adaptive, ATileWhoseListIsOverThreeQuartersOfItsPagesIsDense) {
  EstimationCase c({.num_tokens = 1920}, 38);
  scale_queries(c, 0.01F);  // nearly equal pages: as many as gamma of them
  const HeadLists fewer = build(c, {.gamma = 0.6F}, {.sampled_rows = 1});
  const HeadLists more = build(c, {.gamma = 0.9F}, {.sampled_rows = 1});
  for (size_t tile = 20; tile < 30; ++tile) {
    EXPECT_LE(4 * fewer.blocks[tile].size(), 3 * (tile + 1)) << tile;
    EXPECT_GE(2 * fewer.blocks[tile].size(), tile + 1) << tile;
    EXPECT_EQ(more.blocks[tile], std::vector<int32_t>{kDenseTile}) << tile;
  }
}

TEST(Index, LongestListsOfTilesOfShortAndLongPrompts) {
  EXPECT_EQ(max_listed_blocks(1), 0);
  EXPECT_EQ(max_listed_blocks(4), 3);
  EXPECT_EQ(max_listed_blocks(5), 3);
  EXPECT_EQ(max_listed_blocks(512), 384);
  EXPECT_EQ(max_listed_blocks(1024), 640);
}

TEST(Adaptive, GammaOneIsEverything) {
  EstimationCase c({.num_tokens = 1000}, 36);
  for (const auto& list : build(c, {.gamma = 1.0F}).blocks) {
    EXPECT_EQ(list, std::vector<int32_t>{kDenseTile});
  }
}

TEST(Adaptive, TakesMoreWhereAttentionIsDiffuse) {
  EstimationCase sharp({.num_tokens = 2048}, 37);
  scale_queries(sharp, 32.0F);
  EstimationCase diffuse({.num_tokens = 2048}, 37);
  scale_queries(diffuse, 0.01F);
  const HeadLists few = build(sharp, kRule, {.sampled_rows = 1});
  const HeadLists many = build(diffuse, kRule, {.sampled_rows = 1});
  for (size_t tile = 20; tile < 32; ++tile) {
    EXPECT_GT(num_taken(many, tile), num_taken(few, tile));
    EXPECT_GE(num_taken(many, tile), 3 + (tile - 2) * 3 / 10) << "of equal pages, a share of gamma";
  }
}

TEST(Adaptive, EqualPagesAreTakenFromTheFirst) {
  EstimationCase c({.num_tokens = 640}, 38);
  scale_queries(c, 0.0F);  // every page has the same mass
  // Of 10 pages 0, 8 and 9 are kept; 2 of the other seven reach 0.25.
  EXPECT_EQ(build(c, {.gamma = 0.25F}).blocks.back(), (std::vector<int32_t>{0, 1, 2, 8, 9}));
}

TEST(Adaptive, FindsNeedlesThatMeanPoolingMisses) {
  EstimationCase c = needle_layer(DType::kFloat32);
  const HeadLists adaptive = build(c, kRule, {.sampled_rows = 64});
  EXPECT_EQ(num_needles_found(adaptive), 8);

  const std::vector<RowTile> tiles = tile_rows(kNeedleTokens);
  IndexStorage pooled(shape_for(c, static_cast<int64_t>(tiles.size())));
  const std::vector<int32_t> heads = {0};
  const std::vector<int32_t> top_k = {5};
  cpu::build_block_sparse({.q = c.rows(),
                           .num_query_heads = 1,
                           .kv = c.kv(),
                           .tiles = tiles,
                           .heads = heads,
                           .top_k = top_k,
                           .index = pooled.view()},
                          {.num_threads = 1, .simd = cpu::detect_simd()});
  // A tile chooses three pages out of some twenty, so it finds a needle now and then by luck.
  EXPECT_LE(num_needles_found(pooled.lists(0)), 3);
  EXPECT_LT(num_blocks(adaptive), num_blocks(pooled.lists(0))) << "and with fewer blocks";
}

TEST(Adaptive, HearsTheOneRowThatAsksForWhatItsNeighboursDoNot) {
  EstimationCase c = needle_layer(DType::kFloat32);
  for (const int32_t rows : {1, 4, 12, 64}) {
    EXPECT_EQ(num_needles_found(build(c, kRule, {.sampled_rows = rows})), 8) << rows;
  }
}

TEST(Adaptive, TileWhoseListDoesNotFitIsDense) {
  EstimationCase c({.num_tokens = 1280}, 39);
  scale_queries(c, 16.0F);
  EXPECT_GT(expect_lists_that_fit(build(c, {.gamma = 0.3F}, {.sampled_rows = 4, .max_blocks = 30}),
                                  build(c, {.gamma = 0.3F}, {.sampled_rows = 4}), 30),
            0);
}

TEST(Adaptive, RanksWithTheirStripesAndHeadsFindWhatOneRankFinds) {
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 4, .num_kv_heads = 2}, 40);
  const std::vector<RowTile> tiles = tile_rows(3000);
  const std::vector<int32_t> heads = c.all_heads();
  const std::vector<AdaptiveRule> rules(4, {.gamma = 0.3F});
  IndexStorage whole(shape_for(c, static_cast<int64_t>(tiles.size())));
  cpu::build_adaptive(params(c, tiles, heads, rules, whole),
                      {.num_threads = 1, .simd = cpu::detect_simd()});
  for (const RankTiles& owned : ranks_of_two_and_four(3000)) {
    std::vector<std::byte> rows;
    const void* q = c.rows_of(owned.tiles, rows);
    for (const int32_t head : heads) {
      const std::vector<int32_t> one = {head};
      IndexStorage part(shape_for(c, static_cast<int64_t>(owned.tiles.size())));
      AdaptiveParams share = params(c, owned.tiles, one, std::span(rules).first(1), part);
      share.q = q;
      cpu::build_adaptive(share, {.num_threads = 2, .simd = cpu::detect_simd()});
      expect_part_of_whole(part.lists(head), owned, whole.lists(head));
    }
  }
}

TEST(Adaptive, Avx2AndAvx512ChooseTheSamePages) {
  if (cpu::detect_simd() < cpu::SimdLevel::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  EstimationCase c({.num_tokens = 8192, .head_dim = 128}, 41);
  const std::vector<RowTile> tiles = tile_rows(8192);
  const std::vector<int32_t> heads = {0};
  const std::vector<AdaptiveRule> rules = {{.gamma = 0.3F}};
  IndexStorage narrow(shape_for(c, 128));
  IndexStorage wide(shape_for(c, 128));
  cpu::build_adaptive(params(c, tiles, heads, rules, narrow),
                      {.num_threads = 1, .simd = cpu::SimdLevel::kAvx2});
  cpu::build_adaptive(params(c, tiles, heads, rules, wide),
                      {.num_threads = 1, .simd = cpu::SimdLevel::kAvx512});
  EXPECT_EQ(narrow.lists(0), wide.lists(0));
}

TEST(Adaptive, NotANumberMakesTilesDenseInsteadOfWrong) {
  EstimationCase c({.num_tokens = 640}, 42);
  c.k(0, 3 * 64 + 5, 2) = std::nanf("");
  const HeadLists lists = build(c, {.gamma = 0.5F});
  for (size_t tile = 3; tile < 10; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

// Pages 0 and 40: always kept, and far, in a span.
TEST(Adaptive, NotANumberInAPageMakesAllTilesDenseThatSeeIt) {
  EstimationCase clean = case_of_unlike_pages(4096, 55);
  const HeadLists expected = build(clean, kRule);
  for (const int64_t page : {0, 40}) {
    EstimationCase c = case_of_unlike_pages(4096, 55);
    c.k(0, page * 64 + 63, 7) = std::nanf("");
    const HeadLists lists = build(c, kRule);
    for (int64_t tile = 3; tile < 64; ++tile) {
      const auto i = static_cast<size_t>(tile);
      EXPECT_EQ(lists.blocks[i],
                tile < page ? expected.blocks[i] : std::vector<int32_t>{kDenseTile})
          << "page " << page << ", tile " << tile;
    }
  }
}

TEST(Adaptive, NotANumberInARowMakesItsTileDense) {
  EstimationCase c = case_of_unlike_pages(4096, 56);
  HeadLists expected = build(c, kRule);
  EstimationCase dirty = case_of_unlike_pages(4096, 56);
  dirty.q(50 * 64, 0, 3) = std::nanf("");  // such a tile samples its first rows
  expected.blocks[50] = {kDenseTile};
  EXPECT_EQ(build(dirty, kRule), expected);
}

TEST(AdaptiveDeathTest, RefusesTilesThatTheIndexHasNoRoomFor) {
  EstimationCase c({.num_tokens = 640}, 43);
  const std::vector<RowTile> tiles = tile_rows(640);
  const std::vector<int32_t> heads = {0};
  const std::vector<AdaptiveRule> rules = {{.gamma = 0.5F}};
  IndexStorage index(shape_for(c, 9));
  EXPECT_DEATH(cpu::build_adaptive(params(c, tiles, heads, rules, index), {.num_threads = 1}),
               "10 row tiles, 9 in the index");
}

}  // namespace
}  // namespace millrace::kernels
