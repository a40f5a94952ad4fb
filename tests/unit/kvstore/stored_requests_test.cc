// SPDX-License-Identifier: Apache-2.0
#include "kvstore/stored_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class RequestTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<PageTable> add(const std::string& request_id) {
    EXPECT_TRUE(requests_.check_new(request_id).ok());
    const std::vector<int64_t> pages = {0};
    requests_.add(std::make_shared<PageTable>(request_id, small_geometry(), 64, pages, 0));
    return *requests_.find_running(request_id);
  }
  Errc why_not_leased(const std::string& request_id, const std::string& lease_id) {
    const auto found = requests_.find_leased(request_id, lease_id);
    return found.ok() ? Errc::kInternal : found.error().code;
  }

  testing::FakeClock clock_;
  StoredRequests requests_{clock_};
};

TEST_F(RequestTableTest, ARequestRunsUntilItIsSealed) {
  const auto table = add("r");
  EXPECT_FALSE(requests_.find_sealed("r").ok());
  requests_.seal(*table, "l", seconds(10));
  EXPECT_EQ(requests_.find_running("r").error().code, Errc::kInvalidArgument);
  EXPECT_EQ(*requests_.find_sealed("r"), table);
  EXPECT_EQ(requests_.find_running("other").error().code, Errc::kNotFound);
}

TEST_F(RequestTableTest, NobodyReadsARequestThatIsNeitherOpenNorSealed) {
  const auto table = add("r");
  EXPECT_EQ(why_not_leased("r", "l"), Errc::kNotFound);
  ASSERT_TRUE(requests_.open("r", "l").ok());
  EXPECT_EQ(*requests_.find_leased("r", "l"), table);
  EXPECT_EQ(why_not_leased("r", "another"), Errc::kNotFound);
}

TEST_F(RequestTableTest, ARequestIsOpenedOnceAndBeforeItIsSealed) {
  const auto table = add("r");
  ASSERT_TRUE(requests_.open("r", "l").ok());
  EXPECT_EQ(requests_.open("r", "l").error().code, Errc::kInvalidArgument);
  requests_.seal(*table, "l", seconds(10));
  EXPECT_EQ(requests_.open("r", "l").error().code, Errc::kInvalidArgument);
  EXPECT_EQ(requests_.open("other", "l").error().code, Errc::kNotFound);
}

TEST_F(RequestTableTest, AnOpenRequestIsSealedWithItsLease) {
  add("open");
  add("closed");
  ASSERT_TRUE(requests_.open("open", "l").ok());
  EXPECT_TRUE(requests_.check_seal("open", "l").ok());
  EXPECT_FALSE(requests_.check_seal("open", "another").ok());
  EXPECT_TRUE(requests_.check_seal("closed", "another").ok());
}

TEST_F(RequestTableTest, OnlyASealedRequestIsRenewedOrReleased) {
  const auto table = add("r");
  ASSERT_TRUE(requests_.open("r", "l").ok());
  EXPECT_THAT(requests_.renew("r", "l", seconds(10), seconds(0)).error().message,
              HasSubstr("not sealed"));
  EXPECT_THAT(requests_.check_release("r", "l").error().message, HasSubstr("not sealed"));
  requests_.seal(*table, "l", seconds(10));
  clock_.advance(seconds(8));
  EXPECT_TRUE(requests_.renew("r", "l", seconds(10), seconds(0)).ok());
  clock_.advance(seconds(8));
  EXPECT_TRUE(requests_.check_release("r", "l").ok());
  EXPECT_FALSE(requests_.check_release("r", "another").ok());
}

TEST_F(RequestTableTest, WhoHoldsATableSeesThatTheRequestIsGone) {
  const auto table = add("r");
  requests_.seal(*table, "l", seconds(10));
  EXPECT_EQ(requests_.remove("r", LeaseEnd::kReleased), table);
  EXPECT_TRUE(table->dead);
  EXPECT_THAT(requests_.find_leased("r", "l").error().message, HasSubstr("released"));
  EXPECT_EQ(requests_.remove("r", LeaseEnd::kReleased), nullptr);
}

TEST_F(RequestTableTest, AnIdIsFreeAgainAndItsEarlierEndForgotten) {
  add("r");
  EXPECT_EQ(requests_.check_new("r").error().code, Errc::kInvalidArgument);
  requests_.remove("r", LeaseEnd::kAborted);
  EXPECT_THAT(requests_.find_leased("r", "l").error().message, HasSubstr("aborted"));
  const auto again = add("r");
  EXPECT_FALSE(again->dead);
  EXPECT_THAT(requests_.find_leased("r", "l").error().message,
              ::testing::Not(HasSubstr("aborted")));
}

TEST_F(RequestTableTest, TakesSoManyAndNoMore) {
  for (size_t i = 0; i < StoredRequests::kMaxRequests; ++i) {
    const auto id = std::to_string(i);
    requests_.add(std::make_shared<PageTable>(id, small_geometry(), 64, std::span<int64_t>(), 0));
  }
  EXPECT_EQ(requests_.check_new("r").error().code, Errc::kExhausted);
  requests_.remove("7", LeaseEnd::kAborted);
  EXPECT_TRUE(requests_.check_new("r").ok());
}

}  // namespace
}  // namespace millrace::kvstore
