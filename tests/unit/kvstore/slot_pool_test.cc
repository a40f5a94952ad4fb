// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/slot_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace::kvstore {
namespace {

TEST(SlotPool, GivesEverySlotOnceAndThenNone) {
  SlotPool pool;
  pool.grow(3);
  pool.grow(2);
  std::set<int32_t> taken;
  for (int i = 0; i < 5; ++i) taken.insert(pool.take());
  EXPECT_EQ(taken, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.take(), kNoSlot);
  EXPECT_EQ(pool.used(), 5);
}

TEST(SlotPool, ReusesTheSlotGivenBackLast) {
  SlotPool pool;
  pool.grow(4);
  const int32_t first = pool.take();
  const int32_t second = pool.take();
  pool.give(second);
  pool.give(first);
  EXPECT_EQ(pool.take(), first);
}

TEST(SlotPool, StartsAnewAfterClear) {
  SlotPool pool;
  pool.grow(4);
  pool.clear();
  EXPECT_EQ(pool.size(), 0);
  EXPECT_EQ(pool.take(), kNoSlot);
  pool.grow(1);
  EXPECT_EQ(pool.take(), 0);
}

}  // namespace
}  // namespace millrace::kvstore
