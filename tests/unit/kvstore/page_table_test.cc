// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/page_table.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

TEST(PageTable, FindsEveryPageUnderItsKeyOnce) {
  const std::vector<int64_t> pages = {1, 4, 5};
  PageTable table("r", small_geometry(), 6 * 64, pages, 0);
  std::set<const PageEntry*> seen;
  for (int32_t layer = 0; layer < 5; ++layer) {
    for (int32_t head = 4; head < 6; ++head) {
      for (const int64_t page : pages) {
        const auto found = table.select(layer, head, std::span(&page, 1));
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(found->front()->column->key_of(*found->front()), (PageKey{layer, head, page}));
        seen.insert(found->front());
      }
    }
  }
  EXPECT_EQ(seen.size(), 30u);
}

TEST(PageColumn, HasADigestOfItsOwnForEveryPage) {
  PageColumn column("r", small_geometry(), 1, 2, 0);
  const float* expected = column.digest_of(column.entry(0)).data();
  for (PageEntry& entry : column.entries()) {
    const auto digest = column.digest_of(entry);
    EXPECT_EQ(digest.size(), 24u);
    EXPECT_EQ(digest.data(), expected);
    expected += 24;
  }
}

TEST(PageTable, RoundsAPartialLastPageUp) {
  const PageTable table("r", small_geometry(), 65, iota_pages(2), 0);
  EXPECT_EQ(table.num_prompt_pages(), 2);
}

TEST(PageSlots, PrefersTheFastestTier) {
  PageSlots slots;
  slots[Tier::kDisk] = 3;
  EXPECT_EQ(slots.best(), Tier::kDisk);
  slots[Tier::kHost] = 2;
  EXPECT_EQ(slots.best(), Tier::kHost);
  slots[Tier::kDevice] = 1;
  EXPECT_EQ(slots.best(), Tier::kDevice);
}

}  // namespace
}  // namespace millrace::kvstore
