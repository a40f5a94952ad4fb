// SPDX-License-Identifier: Apache-2.0
// Behaviour that involves more than one part of the scheduler.
#include "coordinator/schedule/scheduler.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using SchedulerService = SchedulerTest;

TEST_F(SchedulerService, CountsOutcomesByReason) {
  RecordingLink link;
  (void)submit("none");
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a");
  ASSERT_FALSE(submit("b"));
  failed("b", Errc::kIo, "disk full");
  const std::string text = registry_.text();
  for (const char* line :
       {"millrace_prefill_requests_total{outcome=\"refused\",reason=\"unavailable\"} 1",
        "millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"} 1",
        "millrace_prefill_requests_total{outcome=\"failed\",reason=\"io\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(SchedulerService, TellsHowLongTheOldestHasWaited) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("runs"));
  scheduler_->tick();
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_oldest_queued_seconds 0\n"));
  ASSERT_FALSE(submit("a"));
  clock_.advance(std::chrono::seconds(2));
  ASSERT_FALSE(submit("b"));
  clock_.advance(std::chrono::seconds(1));
  scheduler_->tick();
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_oldest_queued_seconds 3\n"));
}

TEST_F(SchedulerService, HistogramsOfTimesReachAnHour) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a");
  const std::string text = registry_.text();
  for (const char* name : {"millrace_queue_seconds", "millrace_prefill_seconds"}) {
    std::istringstream lines(text);
    double last = 0;
    for (std::string line; std::getline(lines, line);) {
      const size_t bound = line.find("le=\"");
      if (!line.starts_with(std::string(name) + "_bucket{") ||
          line.find("+Inf") != std::string::npos) {
        continue;
      }
      last = std::max(last, std::stod(line.substr(bound + 4)));
    }
    EXPECT_GE(last, 3600) << name;
  }
}

// A rate over a series that begins at 1 would miss the first event.
TEST_F(SchedulerService, CountsFromZeroWhatHasNotHappenedYet) {
  const std::string text = registry_.text();
  for (const char* line :
       {"millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"} 0",
        "millrace_prefill_requests_total{outcome=\"failed\",reason=\"peer_lost\"} 0",
        "millrace_prefill_requests_total{outcome=\"refused\",reason=\"denied\"} 0",
        "millrace_prefill_given_back_total{reason=\"exhausted\"} 0",
        "millrace_prefill_declined_total{reason=\"exhausted\"} 0",
        "millrace_leases_ended_total{reason=\"released\"} 0",
        "millrace_leases_ended_total{reason=\"expired\"} 0",
        "millrace_leases_ended_total{reason=\"lost\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(SchedulerService, AMessageThatGroupsDoNotSendIsAnError) {
  RecordingLink link;
  join(link);
  protocol::Envelope nonsense;
  nonsense.mutable_cancel()->set_request_id("a");
  EXPECT_FALSE(scheduler_->receive("g0", nonsense).ok());
  EXPECT_FALSE(scheduler_->receive("g0", {}).ok());
}

TEST_F(SchedulerService, ForgetsEndedRequestsAfterAWhileAndAboveTheLimit) {
  SchedulerSettings settings;
  settings.max_ended_records = 2;
  make(settings);
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    failed(id, Errc::kIo, "disk full");
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_EQ(scheduler_->find("a"), nullptr);
  EXPECT_NE(scheduler_->find("b"), nullptr);
  pass(std::chrono::minutes(5) + seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("c"), nullptr);
}

TEST_F(SchedulerService, RecordsWithAnActiveLeaseAreNotOfTheNumberThatIsKept) {
  SchedulerSettings settings;
  settings.max_ended_records = 1;
  make(settings);
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    done(id, "g0", 600'000);
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_active_leases 3"));
  EXPECT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(600)).ok());
  EXPECT_TRUE(scheduler_->release_lease("b", "lease-b").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_TRUE(scheduler_->cancel("c", "DELETE").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_NE(scheduler_->find("a"), nullptr);  // active
  EXPECT_EQ(scheduler_->find("b"), nullptr);  // released before c
  EXPECT_NE(scheduler_->find("c"), nullptr);
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b", "prefill c", "renew lease-a",
                                    "release lease-b", "release lease-c"));
}

}  // namespace
}  // namespace millrace::coordinator
