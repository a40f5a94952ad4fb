// SPDX-License-Identifier: Apache-2.0
#include "common/logging/paced_line.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using std::chrono::seconds;

const TimePoint kStart = TimePoint() + std::chrono::hours(100);

TEST(PacedLine, ThereIsOneLineInTenSecondsThatSaysHowManyItStandsFor) {
  PacedLine line;
  EXPECT_EQ(line.due(kStart), 1);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(line.due(kStart + seconds(1)), std::nullopt);
  EXPECT_EQ(line.due(kStart + seconds(9)), std::nullopt);
  EXPECT_EQ(line.due(kStart + seconds(10)), 1002);
  EXPECT_EQ(line.due(kStart + seconds(11)), std::nullopt);
}

TEST(PacedLine, AFewNeedNotWait) {
  PacedLine line({.pause = seconds(10), .burst = 3});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(line.due(kStart), 1);
  EXPECT_EQ(line.due(kStart), std::nullopt);
  EXPECT_EQ(line.due(kStart + seconds(10)), 2);
  EXPECT_EQ(line.due(kStart + seconds(10)), std::nullopt);
  for (int i = 0; i < 3; ++i) EXPECT_NE(line.due(kStart + seconds(100)), std::nullopt);
  EXPECT_EQ(line.due(kStart + seconds(100)), std::nullopt);
}

TEST(PacedLine, ALineThatStandsForOneSaysNothingMore) {
  EXPECT_EQ(PacedLine::others(1), "");
  EXPECT_EQ(PacedLine::others(3), " (2 more like it since the last such line)");
}

}  // namespace
}  // namespace millrace
