// SPDX-License-Identifier: Apache-2.0
// Who may read a request and until when, and what pins keep beyond that.

#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST_F(KvStoreTest, TellsForeignExpiredReleasedAndUnknownApart) {
  make_store(100, 100);
  add("r", 1);
  add("s", 1);
  EXPECT_THAT(store_->pin_pages("r", "lease-s", 0, 4, consecutive_pages(0, 1)).error().message,
              HasSubstr("is not its lease"));
  EXPECT_THAT(pin("nobody", 0, 4, 0).error().message, HasSubstr("unknown"));
  ASSERT_TRUE(store_->release_lease("s", "lease-s").ok());
  EXPECT_THAT(pin("s", 0, 4, 0).error().message, HasSubstr("released"));
  clock_.advance(seconds(61));
  const auto late = pin("r", 0, 4, 0);
  EXPECT_EQ(late.error().code, Errc::kNotFound);
  EXPECT_THAT(late.error().message, HasSubstr("expired 1.000 s ago"));
  EXPECT_EQ(store_->expire_leases(), 1);
  EXPECT_THAT(pin("r", 0, 4, 0).error().message, HasSubstr("expired"));
  EXPECT_EQ(store_->stats().leases_expired, 1);
  EXPECT_EQ(used(Tier::kDevice), 0);
  EXPECT_EQ(used(Tier::kHost), 0);
}

TEST_F(KvStoreTest, CountsPagesThatWaitForAReader) {
  make_store(100, 100);
  add("r", 2);
  const int64_t one_request = store_->stats().unread_pages;
  EXPECT_EQ(one_request, geometry_.num_layers * geometry_.num_kv_heads * 2);
  add("s", 2);
  EXPECT_EQ(store_->stats().unread_pages, 2 * one_request);
  EXPECT_FALSE(store_->pin_pages("r", "lease-s", 0, 4, consecutive_pages(0, 1)).ok());
  EXPECT_EQ(store_->stats().unread_pages, 2 * one_request);
  EXPECT_TRUE(pin("r", 0, 4, 0).ok());
  EXPECT_EQ(store_->stats().unread_pages, one_request);
  ASSERT_TRUE(store_->release_lease("s", "lease-s").ok());
  EXPECT_EQ(store_->stats().unread_pages, 0);
}

TEST_F(KvStoreTest, RenewalMovesTheEndOfALease) {
  make_store(100, 0);
  add("r", 1);
  clock_.advance(seconds(50));
  ASSERT_TRUE(store_->renew_lease("r", "lease-r", seconds(60), seconds(0)).ok());
  clock_.advance(seconds(50));
  EXPECT_EQ(store_->expire_leases(), 0);
  EXPECT_TRUE(pin("r", 0, 4, 0).ok());
  EXPECT_FALSE(store_->renew_lease("r", "foreign", seconds(60), seconds(0)).ok());
  clock_.advance(seconds(10));
  EXPECT_FALSE(store_->renew_lease("r", "lease-r", seconds(60), seconds(0)).ok());
}

TEST_F(KvStoreTest, ARenewalThatWaitedCountsFromWhenItWasAskedFor) {
  make_store(100, 0);
  add("r", 1);
  clock_.advance(seconds(65));
  EXPECT_FALSE(store_->renew_lease("r", "lease-r", seconds(60), seconds(5)).ok());
  ASSERT_TRUE(store_->renew_lease("r", "lease-r", seconds(60), seconds(6)).ok());
  clock_.advance(seconds(59));
  EXPECT_TRUE(pin("r", 0, 4, 0).ok());
  clock_.advance(seconds(2));
  EXPECT_EQ(store_->expire_leases(), 1);
  EXPECT_FALSE(store_->renew_lease("r", "lease-r", seconds(60), seconds(30)).ok());
}

TEST_F(KvStoreTest, PinsOutliveReleaseAbortAndExpiry) {
  for (const std::string end : {"release", "abort", "expire"}) {
    make_store(20, 20);
    add("r", 2);
    auto pins = pin("r", 2, 5, 0, 2);
    ASSERT_TRUE(pins.ok());
    if (end == "release") {
      ASSERT_TRUE(store_->release_lease("r", "lease-r").ok());
    }
    if (end == "abort") store_->abort("r");
    if (end == "expire") {
      clock_.advance(seconds(60));
      ASSERT_EQ(store_->expire_leases(), 1);
    }
    EXPECT_EQ(used(Tier::kDevice) + used(Tier::kHost), 2) << end;
    EXPECT_EQ(store_->stats().pinned_pages, 2);
    EXPECT_EQ(begin("big", 4).error().code, Errc::kExhausted);
    add("next", 3);  // fills every slot that is not pinned, but for those of one page row
    expect_intact("next", 3);
    for (int64_t page = 0; page < 2; ++page) {
      EXPECT_TRUE(holds_generated_data((*pins)->pages()[page], "r", {2, 5, page}, geometry_))
          << end;
    }
    pins->reset();
    store_->abort("next");
    EXPECT_EQ(used(Tier::kDevice) + used(Tier::kHost), 0) << end;
  }
}

}  // namespace
}  // namespace millrace::kvstore
