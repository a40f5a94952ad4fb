// SPDX-License-Identifier: Apache-2.0
// How long computing rows is expected to take, after prompts whose times follow a known law.

#include "worker/store/row_pace.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace::worker {
namespace {

// 20 microseconds a row, and a tenth of a nanosecond for each key.
double true_seconds(int64_t first, int64_t end) {
  double seconds = 0;
  for (int64_t row = first; row < end; ++row) seconds += 20e-6 + 1e-10 * static_cast<double>(row);
  return seconds;
}

TEST(RowPace, KnowsNothingOfAPlanThatItHasNotSeen) {
  RowPace pace;
  EXPECT_FALSE(pace.of("dense"));
  pace.observe("dense", 0, 1000, 1);
  EXPECT_TRUE(pace.of("dense"));
  EXPECT_FALSE(pace.of("adaptive"));
}

TEST(RowPace, TellsWhatRowsAndWhatKeysTake) {
  RowPace pace;
  for (const int64_t tokens : {1000, 100'000, 4000, 50'000}) {
    pace.observe("dense", 0, tokens, true_seconds(0, tokens));
  }
  const auto cost = pace.of("dense");
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->row_s, 20e-6, 1e-8);
  EXPECT_NEAR(cost->key_s, 1e-10, 1e-13);
  EXPECT_NEAR(cost->seconds(80'000, 200'000), true_seconds(80'000, 200'000), 1e-2);
}

TEST(RowPace, PromptsOfOneLengthTellWhatARowTakesOnAverage) {
  RowPace pace;
  for (int i = 0; i < 5; ++i) pace.observe("dense", 0, 10'000, 2);
  const auto cost = pace.of("dense");
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->seconds(0, 10'000), 2, 1e-9);
  EXPECT_EQ(cost->key_s, 0);
}

TEST(RowPace, RowsBehindAShortPrefixTeachToo) {
  RowPace pace;
  pace.observe("dense", 0, 10'000, true_seconds(0, 10'000));
  pace.observe("dense", 40'000, 100'000, true_seconds(40'000, 100'000));
  EXPECT_NEAR(pace.of("dense")->key_s, 1e-10, 1e-13);
}

TEST(RowPace, AFewRowsBehindALongPrefixTeachNothing) {
  RowPace pace;
  pace.observe("dense", 100'000, 100'064, 5);
  EXPECT_FALSE(pace.of("dense"));
}

TEST(RowPace, LongPromptsThatTakeLessARowHaveNoNegativeCost) {
  RowPace pace;
  pace.observe("sparse", 0, 100, 0.03);
  pace.observe("sparse", 0, 100'000, 3);
  EXPECT_EQ(pace.of("sparse")->key_s, 0);
  EXPECT_NEAR(pace.of("sparse")->row_s, 30e-6, 1e-6);
}

TEST(RowPace, FollowsAChange) {
  RowPace pace;
  for (int i = 0; i < 10; ++i) pace.observe("dense", 0, 500'000, 10);
  for (int i = 0; i < 10; ++i) pace.observe("dense", 0, 500'000, 20);
  EXPECT_NEAR(pace.of("dense")->row_s, 40e-6, 1e-8);
}

TEST(RowPace, PlansFromOutsideAreBounded) {
  RowPace pace;
  for (int i = 0; i < 1000; ++i) pace.observe("plan " + std::to_string(i), 0, 100, 1);
  EXPECT_TRUE(pace.of("plan 0"));
  EXPECT_FALSE(pace.of("plan 999"));
}

}  // namespace
}  // namespace millrace::worker
