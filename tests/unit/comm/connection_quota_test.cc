// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/connection_quota.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "comm/tcp/tcp_limits.h"
#include "tests/support/fake_clock.h"

namespace millrace::comm {
namespace {

using std::chrono::seconds;

class ConnectionQuotaTest : public ::testing::Test {
 protected:
  ConnectionQuota::Connection take(const char* lease) {
    auto taken = quota_.take(lease);
    EXPECT_TRUE(taken.ok()) << lease;
    return taken.ok() ? *std::move(taken) : ConnectionQuota::Connection();
  }

  millrace::testing::FakeClock clock_;
  ConnectionQuota quota_{{.all = 4, .of_capability = 3, .idle = seconds(1)}, clock_};
};

TEST_F(ConnectionQuotaTest, WhoHasJustComeOrAskedDoesNotGiveWay) {
  const auto a = take("a"), b = take("a"), c = take("a");
  EXPECT_EQ(quota_.take("a").error().code, Errc::kExhausted);
  const auto d = take("b");
  EXPECT_EQ(quota_.take("b").error().code, Errc::kExhausted);
}

TEST_F(ConnectionQuotaTest, OfOneLeaseTheOneThatIsIdleTheLongestGivesWay) {
  auto a = take("a"), b = take("a"), c = take("a");
  ASSERT_TRUE(a.begin());
  clock_.advance(seconds(2));
  a.end();
  ASSERT_TRUE(b.begin());
  clock_.advance(seconds(1));
  int told = 0;
  c.set_on_evicted([&told] { ++told; });
  const auto d = take("a");
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(c.gives_way());
  EXPECT_FALSE(c.begin());
  EXPECT_FALSE(a.gives_way());
  EXPECT_FALSE(b.gives_way());
}

TEST_F(ConnectionQuotaTest, OfAllTheLeaseWithTheMostGivesWay) {
  const auto first = take("b");
  const auto a = take("a"), b = take("a"), c = take("a");
  clock_.advance(seconds(1));
  const auto another = take("c");
  EXPECT_FALSE(first.gives_way());
  EXPECT_TRUE(a.gives_way());
}

TEST_F(ConnectionQuotaTest, WhoAsksKeepsItsPlace) {
  auto a = take("a"), b = take("b"), c = take("c"), d = take("d");
  for (auto* one : {&a, &b, &c, &d}) ASSERT_TRUE(one->begin());
  clock_.advance(std::chrono::hours(1));
  EXPECT_EQ(quota_.take("e").error().code, Errc::kExhausted);
}

TEST_F(ConnectionQuotaTest, APlaceThatWasGivenUpIsCountedOnce) {
  std::optional<ConnectionQuota::Connection> a = take("a");
  const auto b = take("b"), c = take("c"), d = take("d");
  clock_.advance(seconds(1));
  const auto e = take("e");
  a.reset();  // had given way
  EXPECT_FALSE(b.gives_way());
  const auto f = take("f");  // in place of one of the others
  EXPECT_EQ(b.gives_way() + c.gives_way() + d.gives_way(), 1);
}

TEST(TcpLimitsTest, FollowTheDescriptors) {
  const TcpLimits plenty = TcpLimits().within(1 << 20);
  EXPECT_EQ(plenty.max_clients, TcpLimits().max_clients);
  EXPECT_EQ(plenty.max_strangers, TcpLimits().max_strangers);
  for (const int64_t descriptors : {64, 256, 1024}) {
    const TcpLimits few = TcpLimits().within(descriptors);
    EXPECT_GE(few.max_strangers, 1);
    EXPECT_GE(few.max_clients, 1);
    EXPECT_LE(few.max_strangers + few.max_clients, descriptors);
    EXPECT_LE(few.max_clients_of_lease, few.max_clients);
    EXPECT_LE(few.max_strangers_of_address, few.max_strangers);
  }
}

}  // namespace
}  // namespace millrace::comm
