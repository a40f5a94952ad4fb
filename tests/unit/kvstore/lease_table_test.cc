// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace millrace::kvstore {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class LeaseTableTest : public ::testing::Test {
 protected:
  testing::FakeClock clock_;
  LeaseTable leases_{clock_};
};

TEST_F(LeaseTableTest, HoldsUntilTheInstantItEnds) {
  leases_.grant("r", "l", seconds(10));
  clock_.advance(seconds(10) - milliseconds(1));
  EXPECT_TRUE(leases_.check("r", "l").ok());
  clock_.advance(milliseconds(1));
  EXPECT_THAT(leases_.check("r", "l").error().message, HasSubstr("expired 0.000 s ago"));
}

TEST_F(LeaseTableTest, KnowsLeasesByTheirIdAsLongAsTheyLetRead) {
  leases_.open("open", "early");
  leases_.grant("r", "l", seconds(10));
  EXPECT_TRUE(leases_.knows("early"));
  EXPECT_TRUE(leases_.knows("l"));
  for (const char* wrong : {"", "L", "ll", "earl", "r", "open"}) EXPECT_FALSE(leases_.knows(wrong));
  clock_.advance(seconds(10));
  EXPECT_FALSE(leases_.knows("l"));
  EXPECT_TRUE(leases_.knows("early"));
  leases_.end("open", LeaseEnd::kAborted);
  EXPECT_FALSE(leases_.knows("early"));
}

TEST_F(LeaseTableTest, ListsExactlyTheExpired) {
  leases_.grant("a", "l", seconds(1));
  leases_.grant("b", "l", seconds(2));
  leases_.grant("c", "l", seconds(3));
  clock_.advance(seconds(2));
  EXPECT_THAT(leases_.expired_requests(), UnorderedElementsAre("a", "b"));
}

TEST_F(LeaseTableTest, CountsARenewalFromNow) {
  leases_.grant("r", "l", seconds(10));
  clock_.advance(seconds(5));
  ASSERT_TRUE(leases_.renew("r", "l", seconds(2), seconds(0)).ok());
  clock_.advance(seconds(2));
  EXPECT_FALSE(leases_.check("r", "l").ok());
}

TEST_F(LeaseTableTest, AnOpenLeaseHoldsUntilItIsGrantedAnEndAndThatEndComes) {
  leases_.open("r", "l");
  clock_.advance(2 * kMaxLease);
  EXPECT_TRUE(leases_.holds("r"));
  EXPECT_TRUE(leases_.check("r", "l").ok());
  EXPECT_THAT(leases_.expired_requests(), UnorderedElementsAre());
  leases_.grant("r", "l", seconds(10));
  clock_.advance(seconds(10));
  EXPECT_FALSE(leases_.check("r", "l").ok());
  EXPECT_THAT(leases_.expired_requests(), UnorderedElementsAre("r"));
}

TEST_F(LeaseTableTest, SaysHowARequestEnded) {
  const std::vector<std::pair<LeaseEnd, std::string>> cases = {{LeaseEnd::kReleased, "released"},
                                                               {LeaseEnd::kExpired, "expired"},
                                                               {LeaseEnd::kAborted, "aborted"}};
  for (const auto& [why, word] : cases) {
    leases_.grant("r", "l", seconds(10));
    leases_.end("r", why);
    const auto gone = leases_.check("r", "l");
    EXPECT_EQ(gone.error().code, Errc::kNotFound);
    EXPECT_THAT(gone.error().message, HasSubstr(word));
  }
  EXPECT_EQ(leases_.expired(), 1);
  EXPECT_EQ(leases_.active(), 0);
}

TEST_F(LeaseTableTest, RemembersOnlyTheLatestEnds) {
  for (int i = 0; i < 5000; ++i) leases_.end(std::to_string(i), LeaseEnd::kReleased);
  EXPECT_THAT(leases_.check("4999", "l").error().message, HasSubstr("released"));
  EXPECT_THAT(leases_.check("0", "l").error().message, HasSubstr("unknown"));
}

TEST_F(LeaseTableTest, TheEndOfAnIdThatIsUsedAgainIsRememberedAsLongAsOthers) {
  leases_.end("r", LeaseEnd::kExpired);
  leases_.forget_end("r");
  EXPECT_THAT(leases_.check("r", "l").error().message, HasSubstr("unknown"));
  leases_.end("r", LeaseEnd::kReleased);
  for (int i = 1; i < 4096; ++i) leases_.end(std::to_string(i), LeaseEnd::kAborted);
  EXPECT_THAT(leases_.check("r", "l").error().message, HasSubstr("released"));
  leases_.end("one more", LeaseEnd::kAborted);
  EXPECT_THAT(leases_.check("r", "l").error().message, HasSubstr("unknown"));
}

TEST_F(LeaseTableTest, RefusesLengthsOutOfRange) {
  EXPECT_TRUE(LeaseTable::check_length(kMaxLease).ok());
  EXPECT_EQ(LeaseTable::check_length(Duration::zero()).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(LeaseTable::check_length(-seconds(1)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(LeaseTable::check_length(kMaxLease + seconds(1)).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::kvstore
