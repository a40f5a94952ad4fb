// SPDX-License-Identifier: Apache-2.0
#include "common/kept_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>

namespace millrace {
namespace {

using ::testing::ElementsAre;

TEST(KeptPages, HasWhatWasKeptAndNothingElse) {
  std::mt19937 random(5);
  for (const int64_t num_pages : {1, 7, 8, 9, 64, 131}) {
    KeptPages kept(3, 2, num_pages);
    std::set<std::tuple<int32_t, int32_t, int64_t>> expected;
    for (int i = 0; i < 60; ++i) {
      const auto layer = static_cast<int32_t>(random() % 3),
                 head = static_cast<int32_t>(random() % 2);
      const auto page = static_cast<int64_t>(random()) % num_pages;
      kept.keep(layer, head, page);
      expected.insert({layer, head, page});
    }
    EXPECT_EQ(kept.count(), std::ssize(expected));
    EXPECT_EQ(kept.count_dropped(), 6 * num_pages - std::ssize(expected));
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (int32_t head = 0; head < 2; ++head) {
        for (int64_t page = 0; page < num_pages; ++page) {
          EXPECT_EQ(kept.has(layer, head, page), expected.contains({layer, head, page}));
        }
      }
    }
    const auto again = KeptPages::from_bytes(3, 2, num_pages, kept.bytes());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, kept);
  }
}

TEST(KeptPages, APageIsABitOfItsRowTheLeastFirst) {
  KeptPages kept(1, 2, 10);
  kept.keep(0, 0, 0);
  kept.keep(0, 1, 9);
  EXPECT_EQ(kept.bytes(), std::string("\x01\x00\x00\x02", 4));
  EXPECT_THAT(kept.pages(0, 1), ElementsAre(9));
}

TEST(KeptPages, RefusesBytesThatDoNotFit) {
  const auto refused = [](std::string_view bytes) {
    return !KeptPages::from_bytes(1, 2, 10, bytes).ok();
  };
  EXPECT_FALSE(refused(std::string("\xff\x03\x01\x00", 4)));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(std::string("\x01\x00\x00", 3)));
  EXPECT_TRUE(refused(std::string("\x01\x00\x00\x00\x00", 5)));
  EXPECT_TRUE(refused(std::string("\x01\x00\x00\x04", 4)));  // page 10
}

}  // namespace
}  // namespace millrace
