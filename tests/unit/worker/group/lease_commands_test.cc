// SPDX-License-Identifier: Apache-2.0
// A lease changes on all ranks or on none.
#include "worker/group/lease_commands.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/worker/control/scripted_link.h"
#include "tests/unit/worker/group/small_store.h"

namespace millrace::worker {
namespace {

using std::chrono::milliseconds;

constexpr auto kTimeout = std::chrono::seconds(60);

protocol::LeaseChange renewal(uint64_t lease_ms, const std::string& lease_id = "lease") {
  protocol::LeaseChange change;
  change.mutable_renew()->set_request_id("a");
  change.mutable_renew()->set_lease_id(lease_id);
  change.mutable_renew()->set_lease_ms(lease_ms);
  return change;
}

class LeaseCommandsTest : public ::testing::Test {
 protected:
  LeaseCommandsTest() {
    for (auto& store : stores_) store = test::small_store(clock_);
  }

  // Applies it on two ranks, of which the second may have no store. Returns whether both go on.
  bool apply(const protocol::LeaseChange& change, bool second_stores = true) {
    std::vector<char> fine(stores_.size());
    test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
      const auto rank = static_cast<size_t>(world->rank());
      RankSync sync(*world, nullptr, /*may_hang=*/false, {.command = kTimeout, .layer = kTimeout});
      CoordinatorReporter reporter(rank == 0 ? &link_ : nullptr, board_);
      const bool stores = rank == 0 || second_stores;
      LeaseCommands leases(stores ? stores_[rank].get() : nullptr, sync, reporter, options_);
      fine[rank] = leases.apply(change).ok() ? 1 : 0;
    });
    return fine[0] == 1 && fine[1] == 1;
  }
  protocol::LeaseReply reply() const { return link_.sent().back().lease_reply(); }
  bool readable(size_t rank, const std::string& lease_id = "lease") const {
    return stores_[rank]->pin_pages("a", lease_id, 0, 0, kvstore::consecutive_pages(0, 1)).ok();
  }

  ::millrace::testing::FakeClock clock_;
  std::array<std::unique_ptr<kvstore::KvStore>, 2> stores_;
  test::ScriptedLink link_;
  ControlBoard board_{clock_};
  const GroupOptions options_ = {.max_lease = milliseconds(5000),
                                 .default_lease = milliseconds(300)};
};

TEST_F(LeaseCommandsTest, ARenewalCountsOnAllRanks) {
  for (auto& store : stores_) test::hold(*store, "a", "lease", milliseconds(100));
  ASSERT_TRUE(apply(renewal(200)));
  EXPECT_EQ(reply().expires_in_ms(), 200U);
  clock_.advance(milliseconds(199));
  EXPECT_TRUE(readable(0) && readable(1));
}

TEST_F(LeaseCommandsTest, TheGroupCutsALeaseAndHasOneForRequestsThatNameNone) {
  for (auto& store : stores_) test::hold(*store, "a", "lease", milliseconds(100));
  ASSERT_TRUE(apply(renewal(uint64_t{1} << 60)));
  EXPECT_EQ(reply().expires_in_ms(), 5000U);
  ASSERT_TRUE(apply(renewal(0)));
  EXPECT_EQ(reply().expires_in_ms(), 300U);
}

TEST_F(LeaseCommandsTest, ALeaseThatOneRankHasNoMoreIsGivenUpByTheOther) {
  test::hold(*stores_[0], "a", "lease", milliseconds(100));
  ASSERT_TRUE(apply(renewal(200)));
  EXPECT_EQ(reply().error().code(), static_cast<int>(Errc::kNotFound));
  EXPECT_FALSE(readable(0));
}

TEST_F(LeaseCommandsTest, ARankThatStoresNothingAgreesToAll) {
  test::hold(*stores_[0], "a", "lease", milliseconds(100));
  ASSERT_TRUE(apply(renewal(200), /*second_stores=*/false));
  EXPECT_FALSE(reply().has_error());
  protocol::LeaseChange release;
  release.mutable_release()->set_request_id("a");
  release.mutable_release()->set_lease_id("lease");
  ASSERT_TRUE(apply(release, /*second_stores=*/false));
  EXPECT_FALSE(reply().has_error());
  EXPECT_FALSE(readable(0));
}

}  // namespace
}  // namespace millrace::worker
