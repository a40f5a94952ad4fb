// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/residency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvstore/pages/page_table.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

class ResidencyTest : public ::testing::Test {
 protected:
  // Pages 1 to 7 of a late layer: none is forced, so shares alone decide.
  PageEntry& page(int64_t number) {
    return *table_->head(4, 4).value()[static_cast<size_t>(number)];
  }
  PageEntry& scored(int64_t number, float share) {
    page(number).priority = {Keep::kMass, share};
    return page(number);
  }
  PageSlots write(Residency& residency, PageEntry& entry) {
    const PageSlots slots = residency.take_for_write(entry);
    entry.state = PageState::kWritten;
    residency.settle(entry, slots);
    return slots;
  }
  bool on_device(int64_t number) { return page(number).slots.has(Tier::kDevice); }

  std::shared_ptr<PageTable> table_ =
      std::make_shared<PageTable>("r", small_geometry(), 20 * 64, iota_pages(20), 0);
};

TEST_F(ResidencyTest, EvictsCleanPageOfLowestScoreFirst) {
  Residency residency({3, 10, 0});
  residency.reserve(5);
  write(residency, scored(1, 0.3f));
  write(residency, scored(2, 0.1f));
  write(residency, scored(3, 0.2f));
  write(residency, scored(4, 0.9f));
  EXPECT_FALSE(on_device(2));
  write(residency, scored(5, 0.8f));
  EXPECT_FALSE(on_device(3));
  EXPECT_TRUE(on_device(1));
  EXPECT_EQ(residency.evictions(), 2);
}

TEST_F(ResidencyTest, EvictsNothingForAPageWorthLess) {
  Residency residency({2, 10, 0});
  residency.reserve(3);
  write(residency, scored(1, 0.3f));
  write(residency, scored(2, 0.2f));
  write(residency, scored(3, 0.2f));
  EXPECT_TRUE(on_device(2));
  EXPECT_FALSE(on_device(3));
  EXPECT_TRUE(page(3).slots.has(Tier::kHost));
}

TEST_F(ResidencyTest, ANewScoreChangesTheOrderOfEviction) {
  Residency residency({2, 10, 0});
  residency.reserve(3);
  write(residency, scored(1, 0.1f));
  write(residency, scored(2, 0.2f));
  residency.set_priority(page(1), {Keep::kMass, 0.5f});
  write(residency, scored(3, 0.3f));
  EXPECT_TRUE(on_device(1));
  EXPECT_FALSE(on_device(2));
}

TEST_F(ResidencyTest, NeverEvictsAPinnedPage) {
  Residency residency({2, 10, 0});
  residency.reserve(3);
  write(residency, scored(1, 0.1f));
  write(residency, scored(2, 0.2f));
  residency.pin(page(1));
  write(residency, scored(3, 0.9f));
  EXPECT_TRUE(on_device(1));
  EXPECT_FALSE(on_device(2));
  residency.unpin(page(1));
}

// The worst page on the host gives its place to the best one on disk, unless somebody reads it.
TEST_F(ResidencyTest, APinnedPageStaysWhereItIsAndCountsAgainOnceItIsFree) {
  Residency residency({0, 2, 4});
  residency.grow_disk(4);
  residency.reserve(3);
  write(residency, scored(1, 0.1f));
  write(residency, scored(2, 0.2f));
  write(residency, scored(3, 0.9f));
  for (PageEntry* entry : {&page(1), &page(2), &page(3)}) entry->scored = true;
  ASSERT_EQ(page(3).slots.best(), Tier::kDisk);
  for (int pins = 0; pins < 2; ++pins) residency.pin(page(1));
  const auto other = residency.plan_rise();
  ASSERT_TRUE(other);
  EXPECT_EQ(other->page, &page(2));
  residency.finish(*other, /*copied=*/false);
  residency.pin(page(2));
  EXPECT_FALSE(residency.plan_rise()) << "all on the host are read";
  residency.unpin(page(1));
  EXPECT_FALSE(residency.plan_rise()) << "pinned twice";
  residency.unpin(page(1));
  const auto least = residency.plan_rise();
  ASSERT_TRUE(least);
  EXPECT_EQ(least->page, &page(1));
  residency.finish(*least, /*copied=*/true);
  residency.unpin(page(2));
  const auto rise = residency.plan_rise();
  ASSERT_TRUE(rise);
  EXPECT_EQ(rise->page, &page(3));
  residency.finish(*rise, /*copied=*/true);
  EXPECT_EQ(page(1).slots.best(), Tier::kDisk);
  EXPECT_EQ(page(3).slots.best(), Tier::kHost);
}

TEST_F(ResidencyTest, GoesFromDeviceToHostToDisk) {
  Residency residency({1, 1, 5});
  EXPECT_EQ(residency.available(), 6);
  EXPECT_EQ(residency.disk_shortfall(3), 2);
  residency.grow_disk(2);
  residency.reserve(3);
  EXPECT_TRUE(write(residency, page(1)).has(Tier::kDevice));
  const PageSlots second = write(residency, page(2));
  EXPECT_FALSE(second.has(Tier::kDevice));
  EXPECT_TRUE(second.has(Tier::kHost));
  EXPECT_TRUE(write(residency, page(3)).has(Tier::kDisk));
}

TEST_F(ResidencyTest, WritesThroughOnlyIntoRoomNobodyWasPromised) {
  Residency residency({2, 2, 0});
  residency.reserve(3);
  EXPECT_FALSE(write(residency, page(1)).has(Tier::kHost));
  residency.unreserve(2);
  residency.reserve(1);
  EXPECT_TRUE(write(residency, page(2)).has(Tier::kHost));
}

TEST_F(ResidencyTest, TheHostCopyOfTheBestPageYieldsToAPageWithoutAHome) {
  Residency residency({2, 2, 0});
  residency.reserve(2);
  write(residency, scored(1, 0.9f));
  write(residency, scored(2, 0.5f));
  ASSERT_EQ(residency.slots_used(Tier::kHost), 2);
  EXPECT_EQ(residency.available(), 1);
  residency.reserve(1);
  EXPECT_TRUE(write(residency, scored(3, 0.1f)).has(Tier::kHost));
  EXPECT_TRUE(on_device(1));
  EXPECT_FALSE(page(1).slots.has(Tier::kHost));
  EXPECT_TRUE(page(2).slots.has(Tier::kHost));
}

TEST_F(ResidencyTest, PinsDoNotReduceWhatCanBePromised) {
  Residency residency({2, 2, 0});
  residency.reserve(2);
  write(residency, page(1));
  write(residency, page(2));
  residency.pin(page(1));
  residency.pin(page(2));
  EXPECT_EQ(residency.available(), 1);
  residency.reserve(1);
  EXPECT_TRUE(write(residency, page(3)).has(Tier::kHost));
  EXPECT_TRUE(on_device(1));
  EXPECT_TRUE(on_device(2));
  EXPECT_EQ(residency.slots_used(Tier::kHost), 2);
  residency.unpin(page(1));
  residency.unpin(page(2));
}

TEST_F(ResidencyTest, PromotionOfAWorthierPageMovesADirtyOneOutFirst) {
  Residency residency({1, 0, 5});
  residency.grow_disk(3);
  residency.reserve(2);
  write(residency, scored(1, 0.1f));
  write(residency, scored(2, 0.9f));
  ASSERT_TRUE(page(2).slots.has(Tier::kDisk));

  const auto out = residency.plan_promotion(page(2));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(out->page, &page(1));
  EXPECT_EQ(out->to, Tier::kDisk);
  residency.finish(*out, true);

  const auto in = residency.plan_promotion(page(2));
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(in->page, &page(2));
  EXPECT_EQ(in->to, Tier::kDevice);
  residency.finish(*in, true);

  EXPECT_FALSE(residency.plan_promotion(page(2)).has_value());
  EXPECT_FALSE(residency.plan_promotion(page(1)).has_value());
  EXPECT_EQ(residency.slots_used(Tier::kDisk), 1);
}

TEST_F(ResidencyTest, PromotionFromHostKeepsTheHostCopy) {
  Residency residency({1, 5, 0});
  residency.reserve(2);
  write(residency, scored(1, 0.9f));
  write(residency, scored(2, 0.1f));
  residency.set_priority(page(2), {Keep::kMass, 1.0f});
  const auto in = residency.plan_promotion(page(2));
  ASSERT_TRUE(in.has_value());
  residency.finish(*in, true);
  EXPECT_TRUE(page(2).slots.has(Tier::kDevice));
  EXPECT_TRUE(page(2).slots.has(Tier::kHost));
  EXPECT_FALSE(on_device(1));
  EXPECT_EQ(residency.evictions(), 1);
}

TEST_F(ResidencyTest, WarmsADiskPageWhenTheHostHasRoom) {
  Residency residency({1, 1, 5});
  residency.grow_disk(3);
  residency.reserve(3);
  for (int64_t number = 1; number <= 3; ++number) write(residency, page(number));
  EXPECT_FALSE(residency.plan_warming(page(3), Residency::Takes::kRoom).has_value());
  page(2).column->dead = true;
  residency.free_unpinned(page(2));
  page(2).column->dead = false;
  const auto move = residency.plan_warming(page(3), Residency::Takes::kRoom);
  ASSERT_TRUE(move.has_value());
  residency.finish(*move, true);
  EXPECT_EQ(page(3).slots.best(), Tier::kHost);
  EXPECT_TRUE(page(3).slots.has(Tier::kDisk));
}

TEST_F(ResidencyTest, KeepsTheDiskWhileItIsPromised) {
  Residency residency({1, 0, 5});
  residency.grow_disk(3);
  residency.reserve(2);
  EXPECT_FALSE(residency.shrink_disk());
  residency.unreserve(2);
  EXPECT_TRUE(residency.shrink_disk());
  EXPECT_EQ(residency.slots_allocated(Tier::kDisk), 0);
}

}  // namespace
}  // namespace millrace::kvstore
