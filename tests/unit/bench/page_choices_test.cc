// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/page_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace millrace::bench {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kPages = 10;
constexpr int64_t kTokens = kPages * 64;

// A page's score rises with its number, except that page 3 has the highest.
kvstore::PageScores scores_of(int32_t num_layers) {
  kvstore::PageScores scores{
      .num_layers = num_layers, .num_kv_heads = 1, .num_pages = kPages, .values = {}};
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int64_t page = 0; page < kPages; ++page) {
      scores.values.push_back(page == 3 ? 100 : static_cast<float>(page));
    }
  }
  return scores;
}

TEST(PageChoices, KeepSinksAndWindowAndWhatIsBest) {
  const auto kept = keep_alike(0.4, scores_of(1));
  EXPECT_THAT(kept.pages(0, 0), ElementsAre(0, 3, 8, 9));
  EXPECT_THAT(keep_newest(0.4, scores_of(1)).pages(0, 0), ElementsAre(0, 7, 8, 9));
  EXPECT_EQ(keep_at_random(0.4, scores_of(1)).pages(0, 0).size(), 4U);
}

TEST(PageChoices, KeepTheFirstLayersWholeAtEqualBytes) {
  const auto kept = keep_first_layers(0.75, scores_of(5));
  for (const int32_t layer : {0, 1, 2}) EXPECT_EQ(kept.pages(layer, 0).size(), 10U) << layer;
  // 0.75 of 50 pages, without 30, over two layers: 3.75 each, rounded to the nearest number.
  for (const int32_t layer : {3, 4}) EXPECT_EQ(kept.pages(layer, 0).size(), 4U) << layer;
}

TEST(PageChoices, KeepTheNewestInProportionToSpans) {
  const plan::HeadPattern two_pages{.pattern = plan::Pattern::kElastic, .alpha = 128, .beta = 0};
  const plan::HeadPattern half{.pattern = plan::Pattern::kElastic, .alpha = 0, .beta = 0.5F};
  plan::HeadPlan plan(/*num_layers=*/2, /*num_heads=*/2, two_pages);
  plan.at(1, 0) = half;  // the longer one of the two is the kv head's
  const auto choose = keep_spans(plan, kTokens);
  // 2 and 5 pages become 3.6 and 9 of 12, rounded down.
  const auto most = choose(0.6, scores_of(2));
  EXPECT_THAT(most.pages(0, 0), ElementsAre(0, 8, 9));
  EXPECT_EQ(most.pages(1, 0).size(), 9U);
  const auto less = choose(0.4, scores_of(2));
  EXPECT_THAT(less.pages(0, 0), ElementsAre(0, 8, 9));
  EXPECT_THAT(less.pages(1, 0), ElementsAre(0, 6, 7, 8, 9));
}

}  // namespace
}  // namespace millrace::bench
