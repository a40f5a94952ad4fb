// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {
namespace {

using testing::Each;
using testing::Ge;

// Sums of `num_heads` heads drawn from few values, so that most decisions are ties.
struct Sums {
  Sums(int64_t tokens, int64_t num_heads, uint64_t seed, uint64_t num_values = 5)
      : num_tokens(tokens) {
    for (int64_t i = 0; i < num_heads * tokens; ++i) {
      const auto index = static_cast<uint64_t>(i);
      columns.push_back(static_cast<float>(test::random_bits(seed, index) % num_values));
      diagonals.push_back(static_cast<float>(test::random_bits(seed + 1, index) % num_values));
    }
  }

  VerticalSlashParams params(std::span<const int32_t> heads,
                             std::span<const VerticalSlashBudget> budgets,
                             IndexStorage& index) const {
    return {.column_sums = columns.data(),
            .diagonal_sums = diagonals.data(),
            .num_tokens = num_tokens,
            .heads = heads,
            .budgets = budgets,
            .index = index.view()};
  }

  HeadLists build(VerticalSlashBudget budget,
                  IndexShape shape = {
                      .num_heads = 1, .max_bands = 1000, .max_columns = 1000}) const {
    IndexStorage index(shape);
    const std::vector<int32_t> heads = {0};
    const std::vector budgets = {budget};
    cpu::build_vertical_slash(params(heads, budgets, index), {.num_threads = 1});
    EXPECT_TRUE(index.guards_intact());
    return index.lists(0);
  }

  int64_t num_tokens;
  std::vector<float> columns;
  std::vector<float> diagonals;
};

bool contains_offset(const HeadLists& lists, int32_t offset) {
  return std::any_of(lists.bands.begin(), lists.bands.end(),
                     [offset](const Band& band) { return band.lo <= offset && offset <= band.hi; });
}

std::vector<int32_t> gaps(const HeadLists& lists) {
  std::vector<int32_t> result;
  for (size_t i = 1; i < lists.bands.size(); ++i) {
    result.push_back(lists.bands[i].lo - lists.bands[i - 1].hi);
  }
  return result;
}

TEST(VerticalSlash, ListsAreThoseOfTheReference) {
  const std::vector<int32_t> heads = {4, 0, 3};  // a subset, in any order
  for (const int64_t num_tokens : {1, 29, 64, 65, 777, 3000}) {
    const Sums sums(num_tokens, 3, static_cast<uint64_t>(num_tokens));
    const std::vector<VerticalSlashBudget> budgets = {{200, 120}, {0, 0}, {1 << 20, 1 << 20}};
    const IndexShape shape = {
        .num_heads = 5, .max_bands = 12, .max_columns = static_cast<int32_t>(num_tokens)};
    IndexStorage expected(shape);
    ref::build_vertical_slash(sums.params(heads, budgets, expected));
    for (const cpu::Context& context : test::contexts()) {
      IndexStorage actual(shape);
      cpu::build_vertical_slash(sums.params(heads, budgets, actual), context);
      for (const int32_t head : heads) EXPECT_EQ(actual.lists(head), expected.lists(head));
      EXPECT_EQ(actual.lists(1), HeadLists{}) << "a head that was not asked for";
      EXPECT_TRUE(actual.guards_intact());
    }
  }
}

TEST(VerticalSlash, TakesTheForcedAndThenTheLargestWithTiesToTheSmaller) {
  Sums sums(1000, 1, 0, 1);  // all equal
  sums.columns[900] = 2;
  sums.diagonals[800] = 2;
  const HeadLists lists = sums.build({.verticals = 32, .slashes = 102});
  std::vector<int32_t> columns(31);
  std::iota(columns.begin(), columns.end(), 0);
  columns.push_back(900);
  EXPECT_EQ(lists.columns, columns);
  EXPECT_EQ(lists.bands, (std::vector<Band>{{0, 100}, {800, 800}}));
}

TEST(VerticalSlash, ForcedOnesComeFirstWithinASmallBudget) {
  const Sums sums(1000, 1, 3);
  const HeadLists lists = sums.build({.verticals = 1, .slashes = 1});
  std::vector<int32_t> columns(30);
  std::iota(columns.begin(), columns.end(), 0);
  EXPECT_EQ(lists.columns, columns);
  EXPECT_EQ(lists.bands, (std::vector<Band>{{0, 49}}));
}

TEST(VerticalSlash, BandsHoldEveryChosenOffsetAndAreFurtherApartThanATile) {
  const Sums sums(5000, 1, 4, 1 << 20);
  const int64_t budget = 160;
  const HeadLists lists = sums.build({.verticals = 30, .slashes = budget});
  std::vector<std::pair<float, int32_t>> best;
  for (int32_t o = 100; o < 5000; ++o)
    best.emplace_back(-sums.diagonals[static_cast<size_t>(o)], o);
  std::sort(best.begin(), best.end());
  for (int32_t o = 0; o < 100; ++o) EXPECT_TRUE(contains_offset(lists, o));
  for (size_t i = 0; i < budget - 100; ++i) EXPECT_TRUE(contains_offset(lists, best[i].second));
  EXPECT_THAT(gaps(lists), Each(Ge(kTileRows + 1)));
  EXPECT_GT(lists.bands.size(), 20U);
}

TEST(VerticalSlash, OffsetsATileApartShareABandAndOneMoreDoesNot) {
  Sums sums(1000, 1, 0, 1);
  sums.diagonals[300] = sums.diagonals[364] = 2;
  sums.diagonals[600] = sums.diagonals[665] = 2;
  EXPECT_EQ(sums.build({.slashes = 104}).bands,
            (std::vector<Band>{{0, 99}, {300, 364}, {600, 600}, {665, 665}}));
}

TEST(VerticalSlash, TooManyBandsCloseTheSmallestGapsAndLoseNothing) {
  const Sums sums(20000, 1, 5, 1 << 20);
  const HeadLists all = sums.build({.slashes = 160});
  const HeadLists few =
      sums.build({.slashes = 160}, {.num_heads = 1, .max_bands = 7, .max_columns = 30});
  ASSERT_GT(all.bands.size(), 20U);
  ASSERT_EQ(few.bands.size(), 7U);
  for (const Band& band : all.bands) {
    EXPECT_TRUE(contains_offset(few, band.lo) && contains_offset(few, band.hi));
  }
  std::vector<int32_t> widest = gaps(all);
  std::sort(widest.begin(), widest.end(), std::greater<>());
  widest.resize(6);
  std::vector<int32_t> kept = gaps(few);
  std::sort(kept.begin(), kept.end(), std::greater<>());
  EXPECT_EQ(kept, widest);
}

TEST(VerticalSlash, SurvivesNotANumber) {
  Sums sums(500, 1, 6);
  std::fill(sums.columns.begin(), sums.columns.end(), std::nanf(""));
  std::fill(sums.diagonals.begin() + 200, sums.diagonals.end(), std::nanf(""));
  const HeadLists lists = sums.build({.verticals = 40, .slashes = 120});
  EXPECT_EQ(lists.columns.size(), 40U);
  EXPECT_TRUE(contains_offset(lists, 0));
}

TEST(VerticalSlashDeathTest, RefusesMoreColumnsThanThereIsRoomFor) {
  const Sums sums(500, 1, 7);
  EXPECT_DEATH(sums.build({.verticals = 50}, {.num_heads = 1, .max_bands = 1, .max_columns = 49}),
               "50 verticals into 49 columns");
}

}  // namespace
}  // namespace millrace::kernels
