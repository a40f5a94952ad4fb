// SPDX-License-Identifier: Apache-2.0
// The stages of a request fill its time.
#include "engine/stage_clock.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/fake_clock.h"

namespace millrace::engine {
namespace {

using std::chrono::milliseconds;

TEST(StageClock, EveryMomentFromTheBeginningOnCountsForTheStageEnteredLast) {
  ::millrace::testing::FakeClock clock;
  StageClock stages(clock);
  clock.advance(milliseconds(125));
  stages.enter(Stage::kLayers);
  clock.advance(milliseconds(2000));
  stages.enter(Stage::kTail);
  clock.advance(milliseconds(250));
  stages.enter(Stage::kClose);
  clock.advance(milliseconds(500));
  const auto seconds = stages.stop();
  EXPECT_EQ(seconds, (std::array<double, 4>{0.125, 2.0, 0.25, 0.5}));
  EXPECT_EQ(std::accumulate(seconds.begin(), seconds.end(), 0.0), 2.875);
}

TEST(StageClock, AStageThatIsNotReachedHasNone) {
  ::millrace::testing::FakeClock clock;
  StageClock stages(clock);
  clock.advance(milliseconds(500));
  EXPECT_EQ(stages.stop(), (std::array<double, 4>{0.5, 0, 0, 0}));
}

}  // namespace
}  // namespace millrace::engine
