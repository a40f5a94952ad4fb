// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_table.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;
using Due = RequestTable::Due;

constexpr TimePoint kStart{};

class RequestTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<Request> insert(const std::string& id, Duration deadline) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->queued_at = kStart;
    request->options.set_deadline_ms(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count()));
    EXPECT_TRUE(table_.insert(request)) << id;
    return request;
  }
  void end(Request& request, Duration after, std::optional<Duration> lease = std::nullopt) {
    request.state = lease ? RequestState::kDone : RequestState::kFailed;
    request.lease = lease ? LeaseState::kActive : LeaseState::kNone;
    request.kept_since = kStart + after;
    request.lease_ends = kStart + after + lease.value_or(Duration::zero());
    table_.reschedule(request);
  }
  std::string due(Due what, Duration now) const {
    const auto request = table_.first_due(what, kStart + now);
    return request ? request->id : "";
  }

  RequestTable table_{/*max_ended=*/2, /*keep_ended=*/seconds(100)};
};

TEST_F(RequestTableTest, TheEarliestDeadlineIsDueFirstAndNotBeforeItsTime) {
  insert("late", seconds(3));
  insert("early", seconds(1));
  EXPECT_EQ(due(Due::kDeadline, std::chrono::milliseconds(999)), "");
  EXPECT_EQ(due(Due::kDeadline, seconds(1)), "early");
  EXPECT_EQ(due(Due::kDeadline, seconds(9)), "early");
}

TEST_F(RequestTableTest, WhatARecordWaitsForFollowsFromItsState) {
  const auto request = insert("a", seconds(1));
  EXPECT_EQ(table_.num_leased(), 0);
  end(*request, seconds(2), seconds(10));
  EXPECT_EQ(table_.num_leased(), 1);
  EXPECT_EQ(due(Due::kDeadline, seconds(1000)), "");
  EXPECT_EQ(due(Due::kLeaseEnd, seconds(11)), "");
  EXPECT_EQ(due(Due::kLeaseEnd, seconds(12)), "a");
  request->lease_ends = kStart + seconds(50);
  table_.reschedule(*request);
  EXPECT_EQ(due(Due::kLeaseEnd, seconds(49)), "");
  request->lease = LeaseState::kExpired;
  table_.reschedule(*request);
  EXPECT_EQ(table_.num_leased(), 0);
  EXPECT_EQ(due(Due::kForgetting, seconds(102)), "a");
}

TEST_F(RequestTableTest, ForgetsTheOldestAboveTheLimitAndWhatIsTooOld) {
  for (const int i : {2, 1, 3}) end(*insert(std::to_string(i), seconds(9)), seconds(i));
  insert("running", seconds(9999));
  table_.forget(kStart + seconds(3));
  EXPECT_EQ(table_.find("1"), nullptr);
  EXPECT_NE(table_.find("2"), nullptr);
  table_.forget(kStart + seconds(102));
  EXPECT_NE(table_.find("2"), nullptr);
  table_.forget(kStart + seconds(103));
  EXPECT_EQ(table_.find("2"), nullptr);
  EXPECT_NE(table_.find("3"), nullptr);
  EXPECT_NE(table_.find("running"), nullptr);
}

TEST_F(RequestTableTest, ARecordThatGivesWayIsDueNoMore) {
  const auto first = insert("a", seconds(1));
  EXPECT_FALSE(table_.insert(std::make_shared<Request>(*first)));
  end(*first, seconds(1));
  const auto second = insert("a", seconds(5));
  EXPECT_EQ(due(Due::kForgetting, seconds(1000)), "");
  EXPECT_EQ(table_.first_due(Due::kDeadline, kStart + seconds(5)), second);
  table_.reschedule(*first);  // no longer a record of this table
  EXPECT_EQ(table_.first_due(Due::kDeadline, kStart + seconds(5)), second);
}

}  // namespace
}  // namespace millrace::coordinator
