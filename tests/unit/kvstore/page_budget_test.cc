#include "kvstore/rules/page_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;

// One page after the other: page 0, the last two, then whichever of the rest has the highest score,
// the first of them.
std::vector<bool> one_by_one(int64_t count, const std::vector<float>& scores) {
  std::vector<bool> kept(scores.size());
  const size_t last = scores.size() - 1;
  kept[0] = kept[last] = kept[last == 0 ? 0 : last - 1] = true;
  while (std::count(kept.begin(), kept.end(), true) < count) {
    size_t best = scores.size();
    for (size_t page = 0; page < scores.size(); ++page) {
      if (!kept[page] && (best == scores.size() || scores[page] > scores[best])) best = page;
    }
    kept[best] = true;
  }
  return kept;
}

TEST(PageBudget, ChoosesAsOneByOneWould) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto num_pages = std::uniform_int_distribution<size_t>(1, 90)(random);
    // Few values: many pages are equal.
    std::uniform_int_distribution<int> value(0, round % 2 == 0 ? 4 : 1 << 20);
    std::vector<float> scores(num_pages);
    for (float& score : scores) score = static_cast<float>(value(random)) / 64;
    const double budget = std::uniform_real_distribution<double>(0.01, 1)(random);
    const auto kept = choose_kept_pages(budget, scores);
    const int64_t count = num_kept_pages(budget, std::ssize(scores));
    ASSERT_EQ(kept, one_by_one(count, scores)) << num_pages << " pages, budget " << budget;
    ASSERT_EQ(std::count(kept.begin(), kept.end(), true), count);
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
  EXPECT_THAT(choose_kept_pages(0.625, std::vector<float>(8, 0.125F)),
              ElementsAre(true, true, true, false, false, false, true, true));
}

TEST(PageBudget, SinkAndWindowStayWhateverTheirScore) {
  EXPECT_THAT(choose_kept_pages(0.5, std::vector<float>{0, 1, 2, 3, 0, 0}),
              ElementsAre(true, false, false, false, true, true));
}

}  // namespace
}  // namespace millrace::kvstore
