// SPDX-License-Identifier: Apache-2.0
// What a store returns of a request, and the wrong uses that it refuses.

#include "common/checksum.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST_F(KvStoreTest, ReturnsDigestChecksumScoreAndBytesOfAPage) {
  make_store(100, 0);
  ASSERT_TRUE(begin("r", 4).ok());
  write_all("r", 4);
  ASSERT_TRUE(store_->set_scores("r", 3, 5, std::vector<float>{0.5f, 0.25f, 0.125f, 0.0f}).ok());
  seal("r");
  const auto pins = pin("r", 3, 5, 1, 2);
  ASSERT_TRUE(pins.ok());
  const auto pages = (*pins)->pages();
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_TRUE(holds_generated_data(pages[0], "r", {3, 5, 1}, geometry_));
  EXPECT_EQ(pages[0].checksum, checksum(page_bytes_of("r", {3, 5, 1}, geometry_)));
  EXPECT_EQ(pages[0].score, 0.25f);
  EXPECT_EQ(pages[1].score, 0.125f);
}

TEST_F(KvStoreTest, HoldsStripesOfAPrompt) {
  make_store(100, 0);
  const std::vector<int64_t> pages = {2, 3, 6, 7};
  ASSERT_TRUE(store_->begin_request("r", 8 * 64 - 63, pages).ok());
  ASSERT_TRUE(write_all_pages(*store_, "r", pages, geometry_).ok());
  seal("r");
  const auto pins = pin("r", 0, 4, 6, 2);
  ASSERT_TRUE(pins.ok());
  EXPECT_TRUE(holds_generated_data((*pins)->pages()[1], "r", {0, 4, 7}, geometry_));
  for (const auto& [first, count] : {std::pair{3, 2}, {4, 1}, {7, 2}, {-1, 1}, {2, 4}}) {
    const auto outside = pin("r", 0, 4, first, count);
    ASSERT_FALSE(outside.ok()) << first << " " << count;
    EXPECT_EQ(outside.error().code, Errc::kNotFound);
  }
}

TEST_F(KvStoreTest, PinsThePagesThatAreNamed) {
  make_store(100, 0);
  const std::vector<int64_t> pages = {2, 3, 6, 7};
  ASSERT_TRUE(store_->begin_request("r", 8 * 64, pages).ok());
  ASSERT_TRUE(write_all_pages(*store_, "r", pages, geometry_).ok());
  seal("r");
  const auto pin_named = [&](std::vector<int64_t> named) {
    return store_->pin_pages("r", "lease-r", 1, 5, named);
  };
  const auto pins = pin_named({2, 6, 7});
  ASSERT_TRUE(pins.ok()) << pins.error().to_string();
  EXPECT_EQ(store_->stats().pinned_pages, 3);
  for (const auto& [i, page] : {std::pair<size_t, int64_t>{0, 2}, {1, 6}, {2, 7}}) {
    EXPECT_TRUE(holds_generated_data((*pins)->pages()[i], "r", {1, 5, page}, geometry_)) << page;
  }
  EXPECT_EQ(pin_named({}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(pin_named({6, 2}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(pin_named({6, 6}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(pin_named({2, 4, 6}).error().code, Errc::kNotFound);
  EXPECT_EQ(pin_named({7, 8}).error().code, Errc::kNotFound);
}

TEST_F(KvStoreTest, HoldsARequestOfWhichThisRankHasNoPages) {
  make_store(10, 0);
  ASSERT_TRUE(store_->begin_request("r", 64, {}).ok());
  seal("r");
  EXPECT_EQ(pin("r", 0, 4, 0).error().code, Errc::kNotFound);
}

TEST_F(KvStoreTest, NamesLayerHeadAndPageOutsideTheRequest) {
  make_store(100, 0);
  add("r", 2);
  EXPECT_THAT(pin("r", 5, 4, 0).error().message, HasSubstr("layer 5 of 5"));
  EXPECT_THAT(pin("r", 0, 3, 0).error().message, HasSubstr("kv head 3, this rank holds [4, 6)"));
  EXPECT_THAT(pin("r", 0, 4, 1, 2).error().message, HasSubstr("page 2 is not among the 2 of 2"));
  EXPECT_EQ(pin("r", 0, 4, INT64_MAX, 2).error().code, Errc::kNotFound);
}

TEST_F(KvStoreTest, RefusesWrongUseByTheWriter) {
  make_store(100, 0);
  EXPECT_EQ(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).error().code, Errc::kNotFound);
  ASSERT_TRUE(begin("r", 1).ok());
  EXPECT_EQ(begin("r", 1).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).ok());
  EXPECT_EQ(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(store_->write_page("r", {0, 5, 0}, {}, {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(store_->set_scores("r", 0, 4, std::vector<float>{1, 2}).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(store_->set_scores("r", 0, 4, std::vector<float>{-1}).error().code,
            Errc::kInvalidArgument);
  const auto early = store_->seal("r", "l", seconds(1));
  EXPECT_THAT(early.error().message, HasSubstr("1 of 10 pages are written"));
  EXPECT_EQ(store_->begin_request("", 64, {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(store_->begin_request("x", 0, {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(store_->begin_request("x", 128, std::vector<int64_t>{1, 0}).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(store_->begin_request("x", 128, std::vector<int64_t>{2}).error().code,
            Errc::kInvalidArgument);
}

TEST_F(KvStoreTest, RefusesWritesAfterSeal) {
  make_store(100, 0);
  add("r", 1);
  EXPECT_EQ(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).error().code,
            Errc::kInvalidArgument);
  EXPECT_FALSE(store_->seal("r", "other", seconds(1)).ok());
}

TEST_F(KvStoreTest, TwoRequestsOfOneIdFollowEachOther) {
  make_store(20, 0);
  add("r", 1);
  ASSERT_TRUE(store_->release_lease("r", "lease-r").ok());
  ASSERT_TRUE(begin("r", 2).ok());
  EXPECT_THAT(pin("r", 0, 4, 0).error().message, HasSubstr("not sealed"));
  write_all("r", 2);
  seal("r");
  expect_intact("r", 2);
}

}  // namespace
}  // namespace millrace::kvstore
