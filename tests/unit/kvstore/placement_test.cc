// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kLateLayer = 7;

std::vector<Keep> keeps(const std::vector<PagePriority>& ranks) {
  std::vector<Keep> result;
  for (const PagePriority& rank : ranks) result.push_back(rank.keep);
  return result;
}

TEST(Placement, ForcesSinkAndWindowOfThePromptInEveryLayer) {
  const std::vector<int64_t> pages = {0, 1, 2, 3, 4};
  EXPECT_THAT(keeps(rank_pages(kLateLayer, 5, pages, std::vector<float>(5, 0.0f))),
              ElementsAre(Keep::kSink, Keep::kRest, Keep::kRest, Keep::kWindow, Keep::kWindow));
}

TEST(Placement, FindsSinkAndWindowByPromptPageNotByWhatTheRankHolds) {
  const std::vector<int64_t> stripe = {10, 11, 12};
  EXPECT_THAT(keeps(rank_pages(kLateLayer, 40, stripe, std::vector<float>(3, 0.0f))),
              ElementsAre(Keep::kRest, Keep::kRest, Keep::kRest));
}

TEST(Placement, KeepsAllPagesOfTheFirstThreeLayers) {
  EXPECT_EQ(keep_without_score(0, 5, 20), Keep::kFirstLayer);
  EXPECT_EQ(keep_without_score(2, 5, 20), Keep::kFirstLayer);
  EXPECT_EQ(keep_without_score(3, 5, 20), Keep::kRest);
  EXPECT_EQ(keep_without_score(0, 0, 20), Keep::kSink);
  EXPECT_EQ(keep_without_score(0, 18, 20), Keep::kWindow);
}

TEST(Placement, AddsPagesByScoreUntilTheMassReaches95Percent) {
  const std::vector<int64_t> pages = {5, 6, 7, 8, 9};
  // Shares 0.50, 0.30, 0.10, 0.06, 0.04: the first four reach 0.96.
  const std::vector<float> scores = {3.0f, 25.0f, 2.0f, 15.0f, 5.0f};
  EXPECT_THAT(keeps(rank_pages(kLateLayer, 100, pages, scores)),
              ElementsAre(Keep::kMass, Keep::kMass, Keep::kRest, Keep::kMass, Keep::kMass));
}

TEST(Placement, CountsTheMassOfForcedPages) {
  const std::vector<int64_t> pages = {0, 1, 2, 3, 4};
  // The sink alone holds 0.96.
  const std::vector<float> scores = {96.0f, 2.0f, 2.0f, 0.0f, 0.0f};
  EXPECT_THAT(keeps(rank_pages(kLateLayer, 5, pages, scores)),
              ElementsAre(Keep::kSink, Keep::kRest, Keep::kRest, Keep::kWindow, Keep::kWindow));
}

TEST(Placement, GivesEqualScoresToTheEarlierPage) {
  std::vector<int64_t> pages(100);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = 10 + static_cast<int64_t>(i);
  const auto ranks = rank_pages(kLateLayer, 1000, pages, std::vector<float>(100, 1.0f));
  EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end(),
                             [](const auto& a, const auto& b) { return b < a; }));
  const auto num_mass = std::count_if(ranks.begin(), ranks.end(),
                                      [](const auto& r) { return r.keep == Keep::kMass; });
  // 95, or one more if the float shares sum to slightly less than 0.95.
  EXPECT_GE(num_mass, 95);
  EXPECT_LE(num_mass, 96);
}

TEST(Placement, ComparesHeadsByShareNotByScale) {
  const std::vector<int64_t> pages = {5, 6};
  const auto loud = rank_pages(kLateLayer, 100, pages, std::vector<float>{1000.0f, 1000.0f});
  const auto focused = rank_pages(kLateLayer, 100, pages, std::vector<float>{0.9f, 0.1f});
  EXPECT_LT(loud[0], focused[0]);
  EXPECT_LT(focused[1], loud[1]);
}

TEST(Placement, RanksNothingAsMassWithoutScores) {
  const std::vector<int64_t> pages = {5, 6};
  EXPECT_THAT(keeps(rank_pages(kLateLayer, 100, pages, std::vector<float>{0.0f, 0.0f})),
              ElementsAre(Keep::kRest, Keep::kRest));
}

TEST(Placement, OrdersSinkWindowFirstLayerMassRest) {
  const std::vector<PagePriority> falling = {
      {Keep::kSink, 0.0f}, {Keep::kWindow, 0.5f}, {Keep::kWindow, 0.1f}, {Keep::kFirstLayer, 1.0f},
      {Keep::kMass, 0.9f}, {Keep::kMass, 0.2f},   {Keep::kRest, 0.3f},   {Keep::kRest, 0.0f}};
  for (size_t i = 1; i < falling.size(); ++i) EXPECT_LT(falling[i], falling[i - 1]) << i;
}

}  // namespace
}  // namespace millrace::kvstore
