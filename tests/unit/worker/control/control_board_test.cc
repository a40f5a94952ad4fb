// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_board.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/support/fake_clock.h"

namespace millrace::worker {
namespace {

using std::chrono::milliseconds;

protocol::PrefillDone done(const std::string& id, uint64_t lease_ms) {
  protocol::PrefillDone out;
  out.set_request_id(id);
  out.mutable_manifest()->set_lease_id("lease-" + id);
  out.mutable_manifest()->set_lease_ms(lease_ms);
  out.mutable_manifest()->set_first_token_id(7);
  return out;
}

class ControlBoardTest : public ::testing::Test {
 protected:
  // "a 1000": the lease that is held, and for how many milliseconds.
  std::vector<std::string> held() {
    std::vector<std::string> out;
    for (const auto& lease : board_.held()) {
      EXPECT_EQ(lease.done().manifest().first_token_id(), 7);
      out.push_back(lease.done().request_id() + " " + std::to_string(lease.expires_in_ms()));
    }
    return out;
  }
  using Held = std::vector<std::string>;

  ::millrace::testing::FakeClock clock_;
  ControlBoard board_{clock_};
};

TEST_F(ControlBoardTest, HoldsLeasesUntilTheyEnd) {
  board_.hold(done("a", 1000));
  board_.hold(done("b", 2000));
  clock_.advance(milliseconds(400));
  EXPECT_EQ(held(), Held({"a 600", "b 1600"}));
  clock_.advance(milliseconds(600));
  EXPECT_EQ(held(), Held({"b 1000"}));
}

TEST_F(ControlBoardTest, ARenewalCountsFromNowAndAReleaseForgets) {
  board_.hold(done("a", 1000));
  board_.hold(done("b", 1000));
  clock_.advance(milliseconds(500));
  board_.renew("a", "lease-a", milliseconds(5000));
  board_.renew("b", "foreign", milliseconds(5000));
  EXPECT_EQ(held(), Held({"a 5000", "b 500"}));
  board_.end("a", "lease-a");
  board_.end("b", "foreign");
  EXPECT_EQ(held(), Held({"b 500"}));
}

TEST_F(ControlBoardTest, AHeartbeatSaysRoomOnceItIsKnown) {
  EXPECT_FALSE(board_.heartbeat().has_room());
  board_.post({}, 640);
  EXPECT_EQ(board_.heartbeat().room().free_prompt_tokens(), 640u);
}

protocol::CachedPrefixes change(const std::vector<uint64_t>& added,
                                const std::vector<uint64_t>& gone = {}) {
  protocol::CachedPrefixes out;
  out.mutable_added()->Add(added.begin(), added.end());
  out.mutable_gone()->Add(gone.begin(), gone.end());
  out.add_origins()->set_num_tokens(added.empty() ? 1 : added.front());
  return out;
}

TEST_F(ControlBoardTest, HasAllThatIsCachedUnderTheNumberOfTheLastChange) {
  auto first = change({1, 2, 3});
  board_.cache_changed(first);
  auto second = change({4}, {2, 3});
  board_.cache_changed(second);
  EXPECT_EQ(first.sequence(), 1u);
  EXPECT_EQ(second.sequence(), 2u);
  const auto all = board_.cached_prefixes();
  EXPECT_TRUE(all.whole());
  EXPECT_EQ(all.sequence(), 2u);
  EXPECT_EQ(std::set<uint64_t>(all.added().begin(), all.added().end()), (std::set<uint64_t>{1, 4}));
  EXPECT_EQ(all.origins_size(), 2);
  EXPECT_EQ(board_.heartbeat().cached_prefixes(), 2u);
}

TEST_F(ControlBoardTest, OnlyWhatChangesIsToldAndNumbered) {
  auto first = change({1, 2});
  EXPECT_TRUE(board_.cache_changed(first));
  auto known = change({2, 1}, {7});
  EXPECT_FALSE(board_.cache_changed(known));
  auto some = change({2, 3}, {1, 7});
  EXPECT_TRUE(board_.cache_changed(some));
  EXPECT_EQ(some.sequence(), 2u);
  EXPECT_EQ(some.added_size(), 1);
  EXPECT_EQ(some.gone_size(), 1);
}

TEST_F(ControlBoardTest, NoMoreIsToldThanACoordinatorTakes) {
  std::vector<uint64_t> keys(ControlBoard::kMaxPrefixKeys + 1);
  std::iota(keys.begin(), keys.end(), 1);
  auto many = change(keys);
  EXPECT_TRUE(board_.cache_changed(many));
  EXPECT_EQ(static_cast<size_t>(many.added_size()), ControlBoard::kMaxPrefixKeys);
  auto one_gone = change({keys.back()}, {1});
  EXPECT_TRUE(board_.cache_changed(one_gone));
  EXPECT_EQ(one_gone.added_size(), 1);
}

TEST_F(ControlBoardTest, KeepsTheLatestNamesOfPlans) {
  for (uint64_t i = 0; i < 100; ++i) {
    auto one = change({i});
    board_.cache_changed(one);
    board_.cache_changed(one);
  }
  const auto all = board_.cached_prefixes();
  ASSERT_EQ(all.origins_size(), 64);
  EXPECT_EQ(all.origins(63).num_tokens(), 99u);
}

}  // namespace
}  // namespace millrace::worker
