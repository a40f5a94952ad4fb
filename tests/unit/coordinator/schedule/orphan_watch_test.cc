// SPDX-License-Identifier: Apache-2.0
// Requests whose model has no group left.
#include "coordinator/schedule/orphan_watch.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;

class OrphanWatchTest : public SchedulePartsTest {
 protected:
  // In steps, as for a server that runs.
  void pass(Duration duration) {
    for (Duration passed{}; passed < duration; passed += std::chrono::milliseconds(50)) {
      clock_.advance(std::chrono::milliseconds(50));
      orphans_.expire();
    }
  }

  OrphanWatch orphans_{/*patience=*/seconds(30), requests_, clock_};
};

TEST_F(OrphanWatchTest, RequestsOfTheModelFailOncePatienceHasPassed) {
  const auto mine = queued("mine");
  const auto other = queued("other", 3, "other model");
  orphans_.last_group_left("tiny");
  pass(seconds(29));
  EXPECT_FALSE(mine->ended());
  pass(seconds(1));
  EXPECT_EQ(mine->failure->error.code, Errc::kUnavailable);
  EXPECT_EQ(mine->failure->error.message, "no worker group for model 'tiny' returned within 30 s");
  EXPECT_FALSE(other->ended());
}

TEST_F(OrphanWatchTest, AGroupThatComesBackSavesThem) {
  const auto request = queued("a");
  orphans_.last_group_left("tiny");
  pass(seconds(29));
  orphans_.group_joined("tiny");
  pass(seconds(100));
  EXPECT_FALSE(request->ended());
}

TEST_F(OrphanWatchTest, TimeInWhichThisProcessDidNotRunDoesNotCount) {
  const auto request = queued("a");
  orphans_.last_group_left("tiny");
  clock_.advance(seconds(40));
  orphans_.expire();
  EXPECT_FALSE(request->ended());
  pass(seconds(30));
  EXPECT_TRUE(request->ended());
}

using SchedulerOrphans = SchedulerTest;

TEST_F(SchedulerOrphans, WaitingRequestsFailWhenNoGroupComesBack) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("waiting"));
  scheduler_->remove_group("g0", link, "connection ended");
  pass(seconds(29));
  EXPECT_EQ(state("waiting"), RequestState::kQueued);
  pass(seconds(2));
  EXPECT_EQ(failure("waiting"), Errc::kUnavailable);
  EXPECT_FALSE(scheduler_->busy());
}

}  // namespace
}  // namespace millrace::coordinator
