// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/page_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;

// One page at a time: each head keeps page 0, its last two and its best pages up to half the
// budget. Then the best pages of the layer are kept until its heads together have their budget.
class OneByOne {
 public:
  OneByOne(double budget, const PageScores& scores)
      : scores_(scores), kept_(scores.num_layers, scores.num_kv_heads, scores.num_pages) {
    for (int32_t layer = 0; layer < scores.num_layers; ++layer) {
      for (int32_t head = 0; head < scores.num_kv_heads; ++head) {
        for (const int64_t page : {int64_t{0}, scores.num_pages - 2, scores.num_pages - 1}) {
          if (page >= 0) kept_.keep(layer, head, page);
        }
        while (count(layer, head) < num_kept_pages(budget / 2, scores.num_pages)) {
          take_best(layer, head, head + 1);
        }
      }
      const int64_t wanted = num_kept_pages(budget, scores.num_pages) * scores.num_kv_heads;
      while (count(layer) < wanted) take_best(layer, 0, scores.num_kv_heads);
    }
  }
  const KeptPages& kept() const { return kept_; }

 private:
  int64_t count(int32_t layer, int32_t head) const { return std::ssize(kept_.pages(layer, head)); }
  int64_t count(int32_t layer) const {
    int64_t sum = 0;
    for (int32_t head = 0; head < scores_.num_kv_heads; ++head) sum += count(layer, head);
    return sum;
  }
  void take_best(int32_t layer, int32_t first_head, int32_t end_head) {
    std::tuple<float, int32_t, int64_t> best{-1, 0, 0};
    for (int32_t head = first_head; head < end_head; ++head) {
      const auto row = scores_.of(layer, head);
      const double mass = std::accumulate(row.begin(), row.end(), 0.0);
      for (int64_t page = 0; page < scores_.num_pages; ++page) {
        if (kept_.has(layer, head, page)) continue;
        const auto share =
            static_cast<float>(mass == 0 ? 0 : row[static_cast<size_t>(page)] / mass);
        if (share > std::get<0>(best)) best = {share, head, page};
      }
    }
    kept_.keep(layer, std::get<1>(best), std::get<2>(best));
  }

  const PageScores& scores_;
  KeptPages kept_;
};

PageScores one_head(const std::vector<float>& values) {
  return {.num_layers = 1, .num_kv_heads = 1, .num_pages = std::ssize(values), .values = values};
}

TEST(PageBudget, ChoosesAsOneByOneWould) {
  std::mt19937 random(7);
  const auto draw = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  for (int round = 0; round < 1000; ++round) {
    PageScores scores{.num_layers = static_cast<int32_t>(draw(1, 3)),
                      .num_kv_heads = static_cast<int32_t>(draw(1, 4)),
                      .num_pages = draw(1, 40)};
    for (int64_t row = 0; row < scores.num_layers * scores.num_kv_heads; ++row) {
      // Few different values, so that many pages are equal. Heads have different scales, and some
      // have no mass.
      const int64_t most = draw(0, 3) == 0 ? 1 << 20 : 4 * draw(0, 2);
      for (int64_t page = 0; page < scores.num_pages; ++page) {
        scores.values.push_back(static_cast<float>(draw(0, most)) / 64);
      }
    }
    const double budget = std::uniform_real_distribution<double>(0.01, 1)(random);
    const auto kept = choose_kept_pages(budget, scores);
    ASSERT_TRUE(kept == OneByOne(budget, scores).kept()) << "round " << round;
    ASSERT_EQ(kept.count(),
              num_kept_pages(budget, scores.num_pages) * scores.num_layers * scores.num_kv_heads);
  }
}

TEST(PageBudget, CountsToTheNearestPageAndNeverLessThanSinkAndWindow) {
  EXPECT_EQ(num_kept_pages(0.5, 100), 50);
  EXPECT_EQ(num_kept_pages(0.1, 128), 13);
  EXPECT_EQ(num_kept_pages(0.29, 100), 29);
  EXPECT_EQ(num_kept_pages(0.001, 100), 3);
  EXPECT_EQ(num_kept_pages(0.001, 2), 2);
  EXPECT_EQ(num_kept_pages(1, 7), 7);
}

TEST(PageBudget, OfEqualPagesTheEarlierStays) {
  EXPECT_THAT(choose_kept_pages(0.625, one_head(std::vector<float>(8, 0.125F))).pages(0, 0),
              ElementsAre(0, 1, 2, 6, 7));
}

TEST(PageBudget, SinkAndWindowStayWhateverTheirScore) {
  EXPECT_THAT(choose_kept_pages(0.5, one_head({0, 1, 2, 3, 0, 0})).pages(0, 0),
              ElementsAre(0, 4, 5));
}

// One head looks only at page 3, the other at all pages.
TEST(PageBudget, AHeadThatLooksAroundKeepsMore) {
  const PageScores scores{.num_layers = 1,
                          .num_kv_heads = 2,
                          .num_pages = 12,
                          .values = {0, 0, 0, 96, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                     8, 8, 8, 8,  8, 8, 8, 8, 8, 8, 8, 8}};
  const auto kept = choose_kept_pages(0.5, scores);
  EXPECT_THAT(kept.pages(0, 0), ElementsAre(0, 3, 10, 11));
  EXPECT_THAT(kept.pages(0, 1), ElementsAre(0, 1, 2, 3, 4, 5, 10, 11));
}

// Nothing is taken from another layer.
TEST(PageBudget, LayersKeepAlike) {
  std::vector<float> values(24, 8);
  std::fill(values.begin(), values.begin() + 12, 0.0F);
  values[3] = 96;
  const auto kept = choose_kept_pages(
      0.5, {.num_layers = 2, .num_kv_heads = 1, .num_pages = 12, .values = values});
  EXPECT_EQ(kept.pages(0, 0).size(), 6U);
  EXPECT_EQ(kept.pages(1, 0).size(), 6U);
}

}  // namespace
}  // namespace millrace::kvstore
