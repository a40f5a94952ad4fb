#include "coordinator/groups/group.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

TEST(Group, ALayerTimeoutBeyondADayCountsAsADay) {
  Group group;
  group.description.set_layer_timeout_ms(UINT64_MAX);
  EXPECT_EQ(group.longest_step(), std::chrono::hours(3 * 24));
}

TEST(Group, AReportDuringAPrefillIsIgnored) {
  Group group;
  group.report_room(50);
  group.running = std::make_shared<Request>();
  group.report_room(70);
  EXPECT_EQ(group.free_tokens, 50);
  group.take_running();
  group.report_room(UINT64_MAX);
  EXPECT_EQ(group.free_tokens, INT32_MAX);
}

TEST(Group, WhoHasNotReportedHasRoom) {
  Group group;
  group.count_room(-10);
  EXPECT_TRUE(group.has_room(1000));
  group.report_room(10);
  group.count_room(-4);
  EXPECT_TRUE(group.has_room(6));
  EXPECT_FALSE(group.has_room(7));
}

TEST(Group, AnAnswerEndsTheRunAndItsCancellation) {
  Group group;
  group.running = std::make_shared<Request>();
  group.running->id = "r1";
  group.cancelled_at = TimePoint();
  EXPECT_TRUE(group.works_on("r1"));
  EXPECT_FALSE(group.idle());
  EXPECT_EQ(group.take_running()->id, "r1");
  EXPECT_FALSE(group.works_on("r1"));
  EXPECT_FALSE(group.cancelled_at);
  EXPECT_TRUE(group.idle());
}

}  // namespace
}  // namespace millrace::coordinator
