// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/prefill_pace.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;

TEST(PrefillPace, FollowsWhatPrefillsTakeOfLate) {
  PrefillPace pace;
  EXPECT_EQ(pace.seconds_to_next_turn(1), 1);
  pace.finished(seconds(11));  // 1 + 0.2 (11 - 1)
  EXPECT_EQ(pace.seconds_to_next_turn(1), 3);
  for (int i = 0; i < 100; ++i) pace.finished(seconds(20));
  EXPECT_EQ(pace.seconds_to_next_turn(1), 20);
}

TEST(PrefillPace, GroupsShareTheQueue) {
  PrefillPace pace;
  for (int i = 0; i < 100; ++i) pace.finished(seconds(20));
  EXPECT_EQ(pace.seconds_to_next_turn(4), 5);
  EXPECT_EQ(pace.seconds_to_next_turn(1000), 1);
  EXPECT_EQ(pace.seconds_to_next_turn(0), 20);
}

TEST(PrefillPace, ALongWaitIsAMinute) {
  PrefillPace pace;
  for (int i = 0; i < 100; ++i) pace.finished(seconds(600));
  EXPECT_EQ(pace.seconds_to_next_turn(1), 60);
}

}  // namespace
}  // namespace millrace::coordinator
