// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/exact_index.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/runtime/operations.h"
#include "tests/unit/bench/exact_case.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation/needle_layer.h"

namespace millrace::bench {
namespace {

using kernels::AdaptiveParams;
using kernels::HeadLists;
using kernels::IndexStorage;
using kernels::kDenseTile;
using kernels::kTileRows;
using kernels::RowTile;

const kernels::cpu::Context kContext = {.num_threads = 2, .simd = kernels::cpu::detect_simd()};

class Lists {
 public:
  Lists(EstimationCase& c, std::vector<int32_t> heads, std::vector<AdaptiveRule> rules)
      : tiles_(kernels::tile_rows(c.shape().num_tokens)),
        heads_(std::move(heads)),
        rules_(std::move(rules)),
        storage_({.num_heads = c.shape().num_query_heads,
                  .num_tiles = std::ssize(tiles_),
                  .max_blocks = 1 << 16}),
        params_({.q = c.rows(),
                 .num_query_heads = c.shape().num_query_heads,
                 .scale = c.scale(),
                 .kv = c.kv(),
                 .tiles = tiles_,
                 .heads = heads_,
                 .rules = rules_,
                 .sampled_rows = kTileRows,
                 .index = storage_.view()}) {}

  HeadLists build(int32_t head, int32_t rows = kTileRows,
                  const kernels::cpu::Context& context = kContext) {
    params_.sampled_rows = rows;
    build_exact(params_, context);
    EXPECT_TRUE(storage_.guards_intact());
    return storage_.lists(head);
  }
  const AdaptiveParams& params() const { return params_; }
  IndexStorage& storage() { return storage_; }

 private:
  std::vector<RowTile> tiles_;
  std::vector<int32_t> heads_;
  std::vector<AdaptiveRule> rules_;
  IndexStorage storage_;
  AdaptiveParams params_;
};

HeadLists build(EstimationCase& c, const AdaptiveRule& rule, int32_t rows = kTileRows) {
  return Lists(c, {0}, {rule}).build(0, rows);
}

struct Expected {
  std::vector<std::vector<int32_t>> blocks;
  double margin = std::numeric_limits<double>::infinity();
};

// The union over rows step / 2, step / 2 + step, ... of each tile. Dense are the tiles of the last
// 64 rows, and lists over three quarters of their pages.
Expected by_definition(EstimationCase& c, int32_t head, const AdaptiveRule& rule,
                       int64_t num_rows) {
  Expected expected;
  const int64_t step = kTileRows / num_rows;
  for (const RowTile& tile : kernels::tile_rows(c.shape().num_tokens)) {
    const auto num_pages = static_cast<int32_t>((tile.position + tile.num_rows + 63) / 64);
    std::set<int32_t> pages = {0, std::max(num_pages - 2, 0), num_pages - 1};
    const bool dense = tile.position + tile.num_rows > c.shape().num_tokens - 64;
    for (int64_t row = step / 2; row < tile.num_rows && !dense; row += step) {
      const auto found =
          pages_by_definition(log_masses_by_definition(c, head, tile.position + row), rule);
      pages.insert(found.pages.begin(), found.pages.end());
      expected.margin = std::min(expected.margin, found.margin);
    }
    const bool too_long = 4 * std::ssize(pages) > 3 * num_pages;
    if (dense || too_long) {
      expected.blocks.push_back({kDenseTile});
    } else {
      expected.blocks.emplace_back(pages.begin(), pages.end());
    }
  }
  return expected;
}

// The number of tiles that attend to pages of their own choice, but not to all.
int64_t num_choices(const std::vector<std::vector<int32_t>>& blocks) {
  return std::count_if(blocks.begin(), blocks.end(),
                       [](const auto& list) { return list.size() > 3; });
}

// 4 heads on 2 kv heads. Rows of a tile ask for nearly the same pages, so that even their union
// leaves pages out.
EstimationCase agreeing_rows(DType dtype) {
  constexpr int64_t kTokens = 1100;
  EstimationCase c({.num_tokens = kTokens,
                    .num_query_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 40,
                    .dtype = dtype},
                   63);
  const std::vector<float> wishes = test::random_normals(70, 18 * 40, 4.0F);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int32_t d = 0; d < 40; ++d) {
      const float wish = wishes[static_cast<size_t>(t / 64 * 40 + d)];
      for (int32_t head = 0; head < 4; ++head) c.q(t, head, d) += wish;
    }
  }
  return c;
}

TEST(ExactIndex, ListsAreThoseOfTheDefinition) {
  const std::vector<int32_t> heads = {3, 0, 1};
  const std::vector<AdaptiveRule> rules = {{.gamma = 0.5F, .enough = 0.9F},
                                           {.gamma = 0.3F, .enough = 0.4F},
                                           {.gamma = 0.1F, .enough = 0.3F, .min_recall = 0.5F}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EstimationCase c = agreeing_rows(dtype);
    Lists lists(c, heads, rules);
    for (const int32_t rows : {64, 16, 1}) {
      for (size_t i = 0; i < heads.size(); ++i) {
        SCOPED_TRACE(fmt::format("head {}, {} rows", heads[i], rows));
        const Expected expected = by_definition(c, heads[i], rules[i], rows);
        // Far more than the rounding of float32 products, so that rounding decides nothing.
        ASSERT_GT(expected.margin, 1e-5);
        ASSERT_GE(num_choices(expected.blocks), 4);
        for (const auto& context : test::contexts()) {
          EXPECT_EQ(lists.build(heads[i], rows, context).blocks, expected.blocks)
              << test::to_string(context);
        }
      }
    }
  }
}

TEST(ExactIndex, GammaZeroKeepsThePagesThatAreKeptAnyway) {
  EstimationCase c({.num_tokens = 1000}, 64);
  const HeadLists lists = build(c, {.gamma = 0});
  for (int32_t tile = 3; tile < 14; ++tile) {
    EXPECT_EQ(lists.blocks[static_cast<size_t>(tile)], (std::vector<int32_t>{0, tile - 1, tile}));
  }
}

TEST(ExactIndex, LastRowsAreDenseWhateverTheRule) {
  EstimationCase c({.num_tokens = 1000}, 64);
  const HeadLists lists = build(c, {.gamma = 0});
  // The last 64 of rows 896 to 999 are dense, and with them two tiles.
  for (const size_t tile : {14, 15}) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

TEST(ExactIndex, GammaOneAndMinimumRecallOneAreEverything) {
  EstimationCase c({.num_tokens = 1000}, 65);
  // All mass is on page 1, to the last bit of a double, so that no sum of shares would take the
  // other pages.
  for (int64_t t = 0; t < 1000; ++t) c.q(t, 0, 0) = 200;
  c.k(0, 64 + 5, 0) = 10;
  for (const AdaptiveRule& rule :
       {AdaptiveRule{.gamma = 1}, AdaptiveRule{.gamma = 0, .min_recall = 1}}) {
    for (const auto& list : build(c, rule).blocks) {
      EXPECT_EQ(list, std::vector<int32_t>{kDenseTile});
    }
  }
}

TEST(ExactIndex, ARowThatHasEnoughTakesNoMoreWhateverGamma) {
  EstimationCase c({.num_tokens = 1000}, 66);
  for (int64_t t = 0; t < 1000; ++t) c.q(t, 0, 0) = 40;
  for (int64_t t = 0; t < 64; ++t) c.k(0, t, 0) = 10;  // nearly all mass is on the first page
  const HeadLists lists = build(c, {.gamma = 1.0F, .enough = 0.9F});
  for (int32_t tile = 3; tile < 14; ++tile) {
    EXPECT_EQ(lists.blocks[static_cast<size_t>(tile)], (std::vector<int32_t>{0, tile - 1, tile}));
  }
}

// Page 2 has one key of score 4, page 4 has 64 keys of score 1.5, other keys have 0. The pages'
// masses are 118, 287 and 64. The pattern's estimate, the largest key, takes page 2.
TEST(ExactIndex, CountsAllKeysOfAPage) {
  EstimationCase c({.num_tokens = 1000}, 67);
  flatten(c, 0);
  for (int64_t t = 0; t < 1000; ++t) c.q(t, 0, 0) = 1 / c.scale();
  c.k(0, 2 * 64 + 7, 0) = 4;
  for (int64_t t = 4 * 64; t < 5 * 64; ++t) c.k(0, t, 0) = 1.5F;
  const AdaptiveRule rule = {.gamma = 0.1F};
  Lists lists(c, {0}, {rule});
  EXPECT_EQ(lists.build(0).blocks[12], (std::vector<int32_t>{0, 4, 11, 12}));
  kernels::cpu::build_adaptive(lists.params(), kContext);
  EXPECT_EQ(lists.storage().lists(0).blocks[12], (std::vector<int32_t>{0, 2, 11, 12}));
}

TEST(ExactIndex, EqualPagesAreTakenFromTheFirst) {
  EstimationCase c({.num_tokens = 1000}, 68);
  scale_queries(c, 0);  // every page has the same mass
  // Of 14 pages 0, 12 and 13 are kept; 3 of the other eleven reach 0.25. The rows of tile 13 see
  // only a part of page 13, which makes no difference between the others.
  EXPECT_EQ(build(c, {.gamma = 0.25F}).blocks[13], (std::vector<int32_t>{0, 1, 2, 3, 12, 13}));
}

TEST(ExactIndex, HearsEveryRowThatAsksAlone) {
  EstimationCase c = kernels::needle_layer(DType::kFloat32);
  const AdaptiveRule rule = {.gamma = 0.3F, .enough = 0.8F};
  EXPECT_EQ(num_needles_found(build(c, rule, 64)), 8);
  EXPECT_LT(num_needles_found(build(c, rule, 16)), 8) << "rows at even steps are others";
}

TEST(ExactIndex, WhatIsNotANumberTakesEveryPage) {
  EstimationCase c({.num_tokens = 1000}, 68);
  c.k(0, 3 * 64 + 5, 2) = std::nanf("");
  const HeadLists lists = build(c, {.gamma = 0});
  for (size_t tile = 3; tile < 14; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

}  // namespace
}  // namespace millrace::bench
