#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/api/closed_form.h"
#include "kernels/cpu/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/page_scores_case.h"

namespace millrace::kernels {
namespace {

const cpu::Context kContext = {.num_threads = 2, .simd = cpu::detect_simd()};

Scores score(EstimationCase& c, std::span<const int32_t> heads, const IndexView& index,
             const std::vector<float>& lse, const cpu::Context& context = kContext) {
  return score_on_host(c, heads, index, lse, tiles_of_last_rows(c),
                       [&](const PageScoresParams& p) { cpu::page_scores(p, context); });
}

double sum(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(PageScores, AreThoseOfTheReference) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t num_tokens : {1, 64, 100, 1000, 2048}) {
      EstimationCase c(
          {.num_tokens = num_tokens, .num_query_heads = 4, .num_kv_heads = 2, .dtype = dtype}, 51);
      const std::vector<RowTile> tiles = tile_rows(num_tokens);
      std::vector<HeadLists> lists;
      for (uint64_t h = 0; h < 4; ++h) lists.push_back(random_lists(50 + h, num_tokens, tiles));
      OwnedIndex index(lists);
      const std::vector<int32_t> heads = {2, 3, 0};
      const std::vector<float> lse = dense_lse(c, heads);
      const Scores expected =
          score_on_host(c, heads, index.view(), lse, tiles_of_last_rows(c), ref::page_scores);
      for (const cpu::Context& context : test::contexts()) {
        const Scores actual = score(c, heads, index.view(), lse, context);
        // A probability is off by its score's rounding: 32 products of magnitude up to 16, scaled,
        // and the stored log-sum-exp.
        EXPECT_TRUE(test::within(actual.pages, expected.pages, 4e-6));
        EXPECT_TRUE(test::within(actual.recall, expected.recall, 4e-6));
      }
    }
  }
}

TEST(PageScores, SumToOneForEveryHead) {
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 3, .head_dim = 64}, 52);
  const std::vector<int32_t> heads = c.all_heads();
  OwnedIndex index({dense_lists(3000), dense_lists(3000), dense_lists(3000)});
  const Scores scores = score(c, heads, index.view(), dense_lse(c, heads));
  for (size_t h = 0; h < 3; ++h) {
    EXPECT_NEAR(sum(std::span(scores.pages).subspan(h * 47, 47)), 1, 1e-3);
    EXPECT_NEAR(scores.recall[h], 1, 1e-6);
  }
}

TEST(PageScores, LogSumExpOfASparseRunShowsAsASumAboveOne) {
  EstimationCase c({.num_tokens = 2048, .head_dim = 64}, 53);
  const std::vector<int32_t> heads = {0};
  IndexStorage window({.num_heads = 1, .max_bands = 1, .max_columns = 64});
  write_closed_form(a_shape_form(64, 256, 2048), 2048, 0, window.view());

  // Each row's sum over what the window lets it see.
  std::vector<float> sparse_lse;
  const float scale = c.scale();
  for (int64_t row = 1984; row < 2048; ++row) {
    double total = 0;
    for (int64_t key = 0; key <= row; ++key) {
      if (key >= 64 && row - key >= 256) continue;
      double score = 0;
      for (int32_t d = 0; d < 64; ++d) score += double{c.q(row, 0, d)} * double{c.k(0, key, d)};
      total += std::exp(double{scale} * score);
    }
    sparse_lse.push_back(static_cast<float>(std::log(total)));
  }
  EXPECT_GT(sum(score(c, heads, window.view(), sparse_lse).pages), 1.05);
  EXPECT_NEAR(sum(score(c, heads, window.view(), dense_lse(c, heads)).pages), 1, 1e-3);
}

TEST(PageScores, RecallIsTheShareOfTheMassThatTheIndexCovers) {
  EstimationCase c({.num_tokens = 1024, .head_dim = 16}, 54);
  for (int64_t row = 960; row < 1024; ++row) {
    for (int32_t d = 0; d < 16; ++d) c.q(row, 0, d) = 0;  // even attention
  }
  const std::vector<int32_t> heads = {0};
  const std::vector<float> lse = dense_lse(c, heads);
  // The last tile covers 320 keys before itself and, on average, half of its own 64.
  std::vector<HeadLists> lists = {{.blocks = std::vector<std::vector<int32_t>>(16)}};
  lists[0].blocks[15] = {0, 3, 4, 5, 11, 15};
  OwnedIndex index(lists);
  double expected = 0;
  for (int32_t row = 0; row < 64; ++row) expected += (320.0 + row + 1) / (960.0 + row + 1) / 64;
  EXPECT_NEAR(score(c, heads, index.view(), lse).recall[0], expected, 1e-5);
}

TEST(PageScores, RecallOfADenseTileIsOne) {
  EstimationCase c({.num_tokens = 1024}, 55);
  const std::vector<int32_t> heads = {0};
  std::vector<HeadLists> lists = {{.blocks = std::vector<std::vector<int32_t>>(16)}};
  lists[0].blocks[15] = {kDenseTile};
  OwnedIndex index(lists);
  EXPECT_FLOAT_EQ(score(c, heads, index.view(), dense_lse(c, heads)).recall[0], 1);
}

TEST(PageScores, PageThatTheLastRowsAskForHasTheHighestScore) {
  EstimationCase c({.num_tokens = 2000}, 56);
  for (int64_t row = 1936; row < 2000; ++row) c.q(row, 0, 3) = 10;
  c.k(0, 17 * 64 + 9, 3) = 10;
  const std::vector<int32_t> heads = {0};
  OwnedIndex index({dense_lists(2000)});
  const auto pages = score(c, heads, index.view(), dense_lse(c, heads)).pages;
  EXPECT_EQ(std::max_element(pages.begin(), pages.end()) - pages.begin(), 17);
}

TEST(PageScores, GiveTheSameBitsForAnyThreadCountAndAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 1500, .num_query_heads = 4, .num_kv_heads = 2}, 57);
  const std::vector<int32_t> all = c.all_heads();
  OwnedIndex index(std::vector<HeadLists>(4, {.bands = {{0, 200}}, .columns = {3, 700}}));
  const Scores together = score(c, all, index.view(), dense_lse(c, all));
  for (const int32_t head : all) {
    const std::vector<int32_t> one = {head};
    const Scores alone = score(c, one, index.view(), dense_lse(c, one),
                               {.num_threads = 1, .simd = cpu::detect_simd()});
    const auto pages = std::span(together.pages).subspan(static_cast<size_t>(head) * 24, 24);
    EXPECT_TRUE(test::bitwise_equal(alone.pages, pages));
    EXPECT_EQ(alone.recall[0], together.recall[static_cast<size_t>(head)]);
  }
}

}  // namespace
}  // namespace millrace::kernels
