// SPDX-License-Identifier: Apache-2.0
// Planted heads: the best pattern of each is known from how the head was made.
#include "calibrate/pattern_search.h"

#include <gtest/gtest.h>

#include "tests/unit/calibrate/planted_layer.h"

namespace millrace::calibrate {
namespace {

// Not of a real machine: patterns found by looking at queries have costs, closed forms have none,
// and columns take one and a half times as long as blocks.
const KernelCosts kCosts{.shape = kShape,
                         .num_tokens = kTokens,
                         .listed_block = 1,
                         .gathered_block = 1.5,
                         .probed_page = 0.5,
                         .pooled_block = 0.1,
                         .sampled_block = 0.005};
constexpr kernels::SparseCost kFreeLists{.speed = 1, .launch_tokens = 0, .rows = 0};
constexpr plan::Pattern kMInference[] = {plan::Pattern::kAShape, plan::Pattern::kVerticalSlash,
                                         plan::Pattern::kBlockSparse};

std::vector<plan::HeadPattern> widest_of(const std::vector<Ladder>& ladders) {
  std::vector<plan::HeadPattern> widest;
  for (const auto& ladder : ladders) widest.push_back(ladder.back());
  return widest;
}

std::vector<HeadChoice> search(const SearchOptions& options,
                               std::span<const plan::Pattern> patterns, int num_threads = 2) {
  const auto device = kernels::make_cpu_device({.num_threads = num_threads});
  PatternSearch search(options, make_ladders(patterns, kTokens), kCosts, kFreeLists,
                       /*num_layers=*/1, kHeads);
  TrialOfLayer trial(*device, planted_layer(), widest_of(search.ladders()));
  auto done = search.fit(0, *trial);
  search.settle();
  if (done.ok()) done = search.compare(0, *trial);
  MR_CHECK(done.ok(), "{}", done.error().to_string());
  std::vector<HeadChoice> choices;
  for (int32_t head = 0; head < kHeads; ++head) choices.push_back(search.choose(0, head));
  return choices;
}

TEST(PatternSearch, FindsThePatternThatEachHeadWasMadeFor) {
  const auto choices = search({.time = 0.45}, kMInference);
  EXPECT_EQ(plan::pattern_name(choices[kLocal].pattern.pattern), "a-shape")
      << plan::format_head_pattern(choices[kLocal].pattern);
  EXPECT_EQ(plan::pattern_name(choices[kColumns].pattern.pattern), "vertical-slash")
      << plan::format_head_pattern(choices[kColumns].pattern);
  EXPECT_EQ(plan::pattern_name(choices[kClustered].pattern.pattern), "block-sparse")
      << plan::format_head_pattern(choices[kClustered].pattern);
}

TEST(PatternSearch, KeepsWithinTheBudget) {
  for (const double time : {0.35, 0.5, 0.7}) {
    for (const auto& choice : search({.time = time}, kSearchedPatterns)) {
      EXPECT_LE(choice.time, time) << plan::format_head_pattern(choice.pattern);
      EXPECT_GT(choice.density, 0);
    }
  }
}

TEST(PatternSearch, ErrsLessWithMoreTime) {
  const auto little = search({.time = 0.35}, kMInference);
  const auto much = search({.time = 0.7}, kMInference);
  for (size_t head = 0; head < kHeads; ++head) {
    EXPECT_LE(much[head].error, little[head].error) << head;
  }
}

// Bit for bit, because an index, and attention under it, do not depend on the number of threads.
TEST(PatternSearch, ChoosesTheSameAgainWhateverTheThreads) {
  const auto first = search({.time = 0.4}, kSearchedPatterns, /*num_threads=*/1);
  const auto again = search({.time = 0.4}, kSearchedPatterns, /*num_threads=*/3);
  for (size_t head = 0; head < kHeads; ++head) {
    EXPECT_EQ(first[head].pattern, again[head].pattern) << head;
    EXPECT_EQ(first[head].error, again[head].error) << head;
    EXPECT_EQ(first[head].time, again[head].time) << head;
  }
}

TEST(PatternSearch, RunsHeadsDenselyWhereNothingIsWithinTheBudget) {
  for (const auto& choice : search({.time = 0.01}, kSearchedPatterns)) {
    EXPECT_EQ(choice.pattern, plan::HeadPattern{});
    EXPECT_EQ(choice.time, 1);
  }
}

// For example a layer with a sliding window. The choices for the other layers are the same as
// without it.
TEST(PatternSearch, RunsHeadsDenselyOfALayerThatWasNotLookedAt) {
  const auto device = kernels::make_cpu_device({.num_threads = 2});
  PatternSearch search({.time = 0.45}, make_ladders(kMInference, kTokens), kCosts, kFreeLists,
                       /*num_layers=*/3, kHeads);
  TrialOfLayer trial(*device, planted_layer(), widest_of(search.ladders()));
  for (const int32_t layer : {0, 2}) ASSERT_TRUE(search.fit(layer, *trial).ok());
  search.settle();
  for (const int32_t layer : {0, 2}) ASSERT_TRUE(search.compare(layer, *trial).ok());
  const auto alone = millrace::calibrate::search({.time = 0.45}, kMInference);
  for (int32_t head = 0; head < kHeads; ++head) {
    const auto& expected = alone[static_cast<size_t>(head)];
    EXPECT_EQ(search.choose(1, head).pattern, plan::HeadPattern{}) << head;
    for (const int32_t layer : {0, 2}) {
      EXPECT_EQ(search.choose(layer, head).pattern, expected.pattern) << layer << " " << head;
      EXPECT_EQ(search.choose(layer, head).error, expected.error) << layer << " " << head;
    }
  }
}

TEST(PatternSearch, RunsHeadsDenselyThatErrMoreThanTheyMay) {
  const auto free = search({.time = 0.4}, kMInference);
  const double least = std::min(free[kColumns].error, free[kClustered].error);
  const double most = std::max(free[kColumns].error, free[kClustered].error);
  ASSERT_LT(least, most);
  const auto strict = search({.time = 0.4, .max_error = least}, kMInference);
  int num_dense = 0;
  for (size_t head = 0; head < kHeads; ++head) {
    const bool is_dense = strict[head].pattern == plan::HeadPattern{};
    EXPECT_EQ(is_dense, free[head].error > least) << head;
    num_dense += is_dense ? 1 : 0;
  }
  EXPECT_GT(num_dense, 0);
  EXPECT_LT(num_dense, kHeads);
}

}  // namespace
}  // namespace millrace::calibrate
