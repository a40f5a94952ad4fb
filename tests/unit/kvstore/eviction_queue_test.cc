// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/eviction_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kvstore/pages/page_table.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

PageTable make_table(int64_t num_pages, int64_t sequence) {
  return PageTable("r", small_geometry(), num_pages * 64, iota_pages(num_pages), sequence);
}

TEST(EvictionQueue, YieldsPagesByRisingWorthWhateverHappensInBetween) {
  PageTable table = make_table(20, 0);
  EvictionQueue queue(table.num_entries());
  std::mt19937 random(7);
  std::vector<PageEntry*> in_queue;
  for (int step = 0; step < 5000; ++step) {
    PageColumn& column = *table.columns()[random() % 20];
    PageEntry& page = column.entry(static_cast<int64_t>(random() % 10));
    const PagePriority priority{static_cast<Keep>(random() % 5),
                                static_cast<float>(random() % 50) / 50};
    if (page.queue_index < 0) {
      page.priority = priority;
      queue.insert(page);
      in_queue.push_back(&page);
    } else if (random() % 2 == 0) {
      page.priority = priority;
      queue.restore_order(page);
    } else {
      queue.remove(page);
      std::erase(in_queue, &page);
    }
    ASSERT_EQ(queue.size(), static_cast<int64_t>(in_queue.size()));
    if (in_queue.empty()) continue;
    const auto* least = *std::min_element(in_queue.begin(), in_queue.end(),
                                          [](auto* a, auto* b) { return worth_less(*a, *b); });
    ASSERT_EQ(queue.front().priority, least->priority);
    ASSERT_FALSE(worth_less(queue.back(), queue.front()));
  }
}

TEST(EvictionQueue, HoldsTheOlderOfTwoEqualPagesWorthLess) {
  PageTable old_table = make_table(1, 3);
  PageTable new_table = make_table(1, 4);
  EXPECT_TRUE(worth_less(old_table.columns()[0]->entry(0), new_table.columns()[0]->entry(0)));
  EXPECT_FALSE(worth_less(new_table.columns()[0]->entry(0), old_table.columns()[0]->entry(0)));
}

}  // namespace
}  // namespace millrace::kvstore
