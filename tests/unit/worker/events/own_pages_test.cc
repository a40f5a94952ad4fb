// SPDX-License-Identifier: Apache-2.0
#include "worker/events/own_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

PageContentKey key(uint8_t number) {
  PageContentKey made{};
  made.back() = static_cast<std::byte>(number);
  return made;
}

class OwnPagesTest : public ::testing::Test {
 protected:
  void add(const std::vector<uint8_t>& numbers) {
    std::vector<PageContentKey> keys;
    for (const uint8_t number : numbers) keys.push_back(key(number));
    pages_.add(keys);
  }
  std::vector<BlockHash> take_gone(int64_t num_given_up) {
    return pages_.take_gone(num_given_up, [this](std::span<const PageContentKey> keys) {
      std::vector<bool> found;
      for (const auto& wanted : keys) {
        found.push_back(std::ranges::find(store_, wanted) != store_.end());
      }
      num_looked_at_ += std::ssize(keys);
      return found;
    });
  }

  std::vector<PageContentKey> store_ = {key(1), key(2), key(3)};
  OwnPages pages_;
  int64_t num_looked_at_ = 0;
};

TEST_F(OwnPagesTest, NamesWhatTheStoreHasGivenUpOnce) {
  add({1, 2, 3});
  EXPECT_THAT(take_gone(0), IsEmpty());
  store_ = {key(2)};
  EXPECT_THAT(take_gone(2), UnorderedElementsAre(1, 3));
  store_ = {};
  EXPECT_THAT(take_gone(3), ElementsAre(2));
  EXPECT_THAT(take_gone(4), IsEmpty());
}

TEST_F(OwnPagesTest, LooksAtNewPagesAloneWhereNothingWasGivenUp) {
  add({1, 2});
  take_gone(0);
  add({3});
  num_looked_at_ = 0;
  take_gone(0);
  EXPECT_EQ(num_looked_at_, 1);
  take_gone(0);
  EXPECT_EQ(num_looked_at_, 1);
}

TEST_F(OwnPagesTest, WhatTheStoreDidNotRememberIsGoneAtTheNextLook) {
  add({1, 7, 7});
  EXPECT_THAT(take_gone(0), ElementsAre(7));
}

TEST_F(OwnPagesTest, APageThatCameBackBeforeTheLookIsNotGone) {
  add({1});
  take_gone(0);
  add({1});  // given up, and computed again
  EXPECT_THAT(take_gone(1), IsEmpty());
  store_ = {};
  EXPECT_THAT(take_gone(2), ElementsAre(1));
}

}  // namespace
}  // namespace millrace::worker
