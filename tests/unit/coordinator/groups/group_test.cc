// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/group.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

TEST(Group, ALayerTimeoutBeyondADayCountsAsADay) {
  Group group;
  group.description.set_layer_timeout_ms(UINT64_MAX);
  EXPECT_EQ(group.longest_step(Request()), std::chrono::hours(3 * 24));
}

TEST(Group, AReportDuringAPrefillIsIgnored) {
  Group group;
  group.report_room(50);
  group.running = std::make_shared<Request>();
  group.report_room(70);
  EXPECT_EQ(group.free_tokens, 50);
  group.take("");
  group.report_room(UINT64_MAX);
  EXPECT_EQ(group.free_tokens, INT32_MAX);
}

// Its report was from before the cache went for whose place it is asked.
TEST(Group, OneThatIsAskedWithoutRoomThatIsKnownOfMayHaveMore) {
  Group group;
  group.report_room(50);
  group.count_room(-60);
  EXPECT_TRUE(group.has_room(1000));
  group.report_room(10);
  EXPECT_FALSE(group.has_room(11));
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

TEST(Group, AnAnswerEndsTheRunOfItsRequestAlone) {
  Group group;
  group.running = std::make_shared<Request>();
  group.running->id = "long";
  group.preempting = std::make_shared<Request>();
  group.preempting->id = "short";
  EXPECT_TRUE(group.works_on("long"));
  EXPECT_TRUE(group.works_on("short"));
  EXPECT_EQ(group.take("other"), nullptr);
  EXPECT_EQ(group.take("short")->id, "short");
  EXPECT_FALSE(group.works_on("short"));
  EXPECT_FALSE(group.idle());
  EXPECT_EQ(group.take("long")->id, "long");
  EXPECT_TRUE(group.idle());
}

TEST(Group, ItIsBusyUntilAllThatRunSideBySideHaveEnded) {
  Group group;
  for (const char* id : {"a", "b"}) {
    group.side_by_side.push_back(std::make_shared<Request>());
    group.side_by_side.back()->id = id;
  }
  group.report_room(50);
  EXPECT_FALSE(group.free_tokens.has_value());
  EXPECT_EQ(group.requests().size(), 2U);
  EXPECT_EQ(group.find("b")->id, "b");
  EXPECT_EQ(group.take("a")->id, "a");
  EXPECT_FALSE(group.idle());
  EXPECT_EQ(group.take("a"), nullptr);
  EXPECT_EQ(group.take("b")->id, "b");
  EXPECT_TRUE(group.idle());
}

}  // namespace
}  // namespace millrace::coordinator
