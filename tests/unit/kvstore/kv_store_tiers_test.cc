// SPDX-License-Identifier: Apache-2.0
// Which tier a page is in, while requests arrive and when they are sealed.

#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

TEST_F(KvStoreTest, WritesThroughToHost) {
  make_store(40, 100);
  add("r", 3);
  EXPECT_EQ(used(Tier::kDevice), 30);
  EXPECT_EQ(used(Tier::kHost), 30);
}

TEST_F(KvStoreTest, NewRequestTakesDeviceSlotsOfOlderCleanPagesAndNothingIsLost) {
  make_store(30, 100);
  add("old", 3);
  const auto placement = add("new", 3);
  // One of three pages is a sink and two are in the window. The older sinks are worth more than the
  // newer window pages, and the older window pages less.
  EXPECT_EQ(placement.pages[Tier::kDevice], 20);
  EXPECT_GE(store_->stats().evictions, 20);
  EXPECT_EQ(tier_of("old", {.layer = 0, .kv_head = 4, .page = 0}), Tier::kDevice);
  EXPECT_EQ(tier_of("old", {.layer = 0, .kv_head = 4, .page = 1}), Tier::kHost);
  EXPECT_EQ(tier_of("new", {.layer = 0, .kv_head = 4, .page = 1}), Tier::kDevice);
  expect_intact("old", 3);
  expect_intact("new", 3);
}

TEST_F(KvStoreTest, WriteThroughCopiesYieldToPagesWithoutAHome) {
  make_store(30, 30);
  add("a", 3);
  EXPECT_EQ(used(Tier::kHost), 30);
  add("b", 2);
  expect_intact("a", 3);
  expect_intact("b", 2);
  // 10 slots are left, one of which stays free for moves.
  EXPECT_EQ(begin("c", 1).error().code, Errc::kExhausted);
}

TEST_F(KvStoreTest, KeepsTheBestPagesOnTheDeviceAfterSeal) {
  make_store(70, 200);
  ASSERT_TRUE(begin("r", 10).ok());
  write_all("r", 10);
  // Layers 0 to 2 and sinks and window of the others: 60 + 12 pages, more than the device holds.
  const auto placement = seal("r");
  EXPECT_EQ(placement.pages[Tier::kDevice], 70);
  EXPECT_EQ(placement.pages[Tier::kHost], 30);
  for (int32_t layer = 0; layer < 5; ++layer) {
    for (const int64_t page : {0, 8, 9}) {
      EXPECT_EQ(tier_of("r", {layer, 5, page}), Tier::kDevice) << layer << " " << page;
    }
  }
  EXPECT_EQ(tier_of("r", {4, 4, 5}), Tier::kHost);
  expect_intact("r", 10);
}

TEST_F(KvStoreTest, WithoutPromotionPagesStayWhereTheyWereWritten) {
  for (const bool promotes : {true, false}) {
    make_store(20, 0, 81, promotes);  // every device copy is the only one
    ASSERT_TRUE(begin("r", 10).ok());
    write_all("r", 10);
    // A page of the last layer, which found the device full, is the best of its head.
    std::vector<float> scores(10, 0.01f);
    scores[5] = 0.9f;
    for (const int32_t head : {4, 5}) {
      ASSERT_TRUE(store_->set_scores("r", 4, head, scores).ok());
    }
    const int64_t before = store_->stats().evictions;
    const auto placement = seal("r");
    EXPECT_EQ(placement.pages[Tier::kDevice], 20);
    EXPECT_EQ(store_->stats().evictions > before, promotes);
    expect_intact("r", 10);
  }
}

TEST_F(KvStoreTest, WithoutPromotionNewPagesTakeTheSlotsOfThoseThatCarryNoMass) {
  make_store(90, 200, 0, /*promotes=*/false);
  ASSERT_TRUE(begin("r", 10).ok());
  const auto write_head = [&](int32_t layer, int32_t head) {
    // Forced ones come first: of equal pages, it is undefined which ones give way to them.
    for (const int64_t page : {0, 8, 9, 1, 2, 3, 4, 5, 6, 7}) {
      ASSERT_TRUE(write_generated_page(*store_, "r", {layer, head, page}, geometry_).ok());
    }
  };
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (const int32_t head : {4, 5}) write_head(layer, head);
  }
  for (const int32_t layer : {3, 4}) write_head(layer, 5);
  write_head(3, 4);  // fills the device
  std::vector<float> scores(10, 0.001f);
  scores[6] = 0.9f;
  ASSERT_TRUE(store_->set_scores("r", 3, 4, scores).ok());
  write_head(4, 4);
  seal("r");
  EXPECT_EQ(used(Tier::kDevice), 90);
  for (const int64_t page : {0, 6, 8, 9}) EXPECT_EQ(tier_of("r", {3, 4, page}), Tier::kDevice);
  for (const int64_t page : {1, 2, 3, 4, 5, 7}) {
    EXPECT_EQ(tier_of("r", {3, 4, page}), Tier::kHost) << page;
  }
  for (int64_t page = 0; page < 10; ++page) {
    const bool found_room = page < 4 || page >= 8;
    EXPECT_EQ(tier_of("r", {4, 4, page}), found_room ? Tier::kDevice : Tier::kHost) << page;
  }
  expect_intact("r", 10);
}

TEST_F(KvStoreTest, PlacesByScoreWhatTheForcedPagesLeave) {
  make_store(76, 200);  // 72 forced pages and 4 more
  ASSERT_TRUE(begin("r", 10).ok());
  write_all("r", 10);
  std::vector<float> scores(10, 0.01f);
  scores[6] = 0.9f;
  for (int32_t layer = 3; layer < 5; ++layer) {
    for (int32_t head = 4; head < 6; ++head) {
      ASSERT_TRUE(store_->set_scores("r", layer, head, scores).ok());
    }
  }
  seal("r");
  for (int32_t layer = 3; layer < 5; ++layer) {
    for (int32_t head = 4; head < 6; ++head) {
      EXPECT_EQ(tier_of("r", {layer, head, 6}), Tier::kDevice);
      EXPECT_EQ(tier_of("r", {layer, head, 5}), Tier::kHost);
    }
  }
}

TEST_F(KvStoreTest, SealMovesDirtyPagesOfLowScoreOutOfTheWay) {
  make_store(20, 0, 81);  // every device copy is the only one
  ASSERT_TRUE(begin("r", 10).ok());
  write_all("r", 10);
  const auto placement = seal("r");
  EXPECT_EQ(placement.pages[Tier::kDevice], 20);
  EXPECT_EQ(placement.pages[Tier::kDisk], 80);
  // The 10 sinks come before all else, then 10 of the 20 window pages.
  for (int32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(tier_of("r", {layer, 4, 0}), Tier::kDevice) << layer;
    EXPECT_EQ(tier_of("r", {layer, 5, 0}), Tier::kDevice) << layer;
  }
  EXPECT_GT(store_->stats().evictions, 0);
  expect_intact("r", 10);
}

TEST_F(KvStoreTest, ReadsDiskPagesIntoMemoryOfThePin) {
  make_store(10, 0, 50);
  add("r", 5);
  auto pins = pin("r", 1, 4, 1, 3);
  ASSERT_TRUE(pins.ok());
  EXPECT_EQ((*pins)->pages()[0].tier, Tier::kDisk);
  EXPECT_EQ(store_->stats().page_hits[Tier::kDisk], 3);
  expect_intact("r", 5);
}

}  // namespace
}  // namespace millrace::kvstore
