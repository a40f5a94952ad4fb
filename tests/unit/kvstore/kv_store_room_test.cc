// SPDX-License-Identifier: Apache-2.0
// How much a store accepts, and what it reports when it accepts no more.

#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::HasSubstr;

TEST_F(KvStoreTest, RefusesReservationBeyondAllTiersWithTheNumbers) {
  make_store(20, 10);
  const auto refused = begin("r", 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("needs 30 pages"));
  EXPECT_THAT(refused.error().message, HasSubstr("room for 29"));
  EXPECT_THAT(refused.error().message, HasSubstr("device 0 of 20"));
}

// 8 dimensions: a digest is 3 * 8 * 4 bytes, an entry at most 64.
TEST_F(KvStoreTest, TheHostPoolAlsoHoldsTheRecordsOfThePagesOfAllTiers) {
  const int64_t page_bytes = geometry_.page_bytes();
  const int64_t record_bytes = 3 * 8 * 4 + 64;
  KvStoreConfig config{.device_bytes = 100 * page_bytes,
                       .host_bytes = 1100 * record_bytes + 10 * (page_bytes + record_bytes),
                       .disk_bytes = 1000 * page_bytes,
                       .disk_directory = ::testing::TempDir(),
                       .geometry = geometry_};
  const auto host_slots = [&] {
    auto store = make_kv_store(config, clock_);
    return store.ok() ? (*store)->stats().tiers[Tier::kHost].slots_total : -1;
  };
  EXPECT_EQ(host_slots(), 10);
  --config.host_bytes;
  EXPECT_EQ(host_slots(), 9);
  config.host_bytes = 1100 * record_bytes;
  EXPECT_EQ(host_slots(), 0);
  --config.host_bytes;
  const auto refused = make_kv_store(config, clock_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(refused.error().message,
              HasSubstr("hold 1100 pages, whose records need 172 KiB of the host pool, which has"));
}

TEST_F(KvStoreTest, FillsASingleTierToTheLastSlot) {
  make_store(20, 0);
  const auto placement = add("r", 2);
  EXPECT_EQ(placement.pages[Tier::kDevice], 20);
  expect_intact("r", 2);
}

TEST_F(KvStoreTest, RefusesWhileAnotherRequestHoldsTheRoomAndAcceptsAfterItsRelease) {
  make_store(30, 10);
  add("a", 3);
  EXPECT_EQ(begin("b", 2).error().code, Errc::kExhausted);
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  add("b", 3);
  expect_intact("b", 3);
}

TEST_F(KvStoreTest, CountsPromisedPagesOfARunningRequest) {
  make_store(30, 10);
  ASSERT_TRUE(begin("a", 3).ok());
  EXPECT_EQ(begin("b", 1).error().code, Errc::kExhausted);
  store_->abort("a");
  EXPECT_TRUE(begin("b", 3).ok());
}

TEST_F(KvStoreTest, NeverExceedsItsBudgets) {
  make_store(20, 20, 100);
  add("a", 4);
  add("b", 5);
  const auto stats = store_->stats();
  for (const TierUse& tier : stats.tiers) {
    EXPECT_LE(tier.slots_used, tier.slots_total);
    EXPECT_EQ(tier.slot_bytes, geometry_.page_bytes());
  }
  expect_intact("a", 4);
  expect_intact("b", 5);
}

TEST_F(KvStoreTest, RefusesAGeometryOrBudgetItCannotHold) {
  KvStoreConfig config;
  config.device_bytes = 1 << 20;
  config.geometry = geometry_;
  config.geometry.num_layers = 0;
  EXPECT_EQ(make_kv_store(config, clock_).error().code, Errc::kInvalidArgument);
  config.geometry = geometry_;
  config.host_bytes = -1;
  EXPECT_EQ(make_kv_store(config, clock_).error().code, Errc::kInvalidArgument);
  config.host_bytes = 0;
  config.disk_bytes = 1 << 20;
  config.disk_directory = "/nonexistent/place";
  const auto no_disk = make_kv_store(config, clock_);
  EXPECT_EQ(no_disk.error().code, Errc::kIo);
  EXPECT_THAT(no_disk.error().message, HasSubstr("/nonexistent/place"));
}

}  // namespace
}  // namespace millrace::kvstore
