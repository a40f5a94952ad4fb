// SPDX-License-Identifier: Apache-2.0
// Requests that are read while they are written.

#include "common/checksum.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// A request of 4 pages over three tiers, whose layers come one by one.
class OpenRequestTest : public KvStoreTest {
 protected:
  void SetUp() override {
    make_store(/*device_slots=*/8, /*host_slots=*/8, /*disk_slots=*/40);
    ASSERT_TRUE(begin("r", kPages).ok());
    ASSERT_TRUE(store_->open("r", "lease-r").ok());
  }
  void write(int32_t layer, int32_t head) {
    for (int64_t page = 0; page < kPages; ++page) {
      ASSERT_TRUE(write_generated_page(*store_, "r", {layer, head, page}, geometry_).ok());
    }
  }
  void score(int32_t layer, int32_t head) {
    ASSERT_TRUE(store_->set_scores("r", layer, head, kScores).ok());
  }
  void complete(int32_t layer) {
    for (int32_t head = 4; head < 6; ++head) {
      write(layer, head);
      score(layer, head);
    }
  }
  void expect_layer(int32_t layer) {
    for (int32_t head = 4; head < 6; ++head) {
      const auto pins = pin("r", layer, head, 0, kPages);
      ASSERT_TRUE(pins.ok()) << pins.error().to_string();
      for (int64_t page = 0; page < kPages; ++page) {
        const auto& pinned = (*pins)->pages()[static_cast<size_t>(page)];
        EXPECT_TRUE(holds_generated_data(pinned, "r", {layer, head, page}, geometry_));
        EXPECT_EQ(pinned.checksum, checksum(pinned.bytes));
        EXPECT_EQ(pinned.score, kScores[static_cast<size_t>(page)]);
      }
    }
  }
  void expect_not_there(int32_t layer, int32_t head, const std::string& why) {
    const auto pins = pin("r", layer, head, 0, kPages);
    ASSERT_FALSE(pins.ok());
    EXPECT_EQ(pins.error().code, Errc::kUnavailable);
    EXPECT_THAT(pins.error().message, HasSubstr("request 'r': " + why));
    EXPECT_EQ(store_->stats().pinned_pages, 0);
  }

  static constexpr int64_t kPages = 4;
  const std::vector<float> kScores = {0.1f, 0.6f, 0.2f, 0.1f};
};

TEST_F(OpenRequestTest, EachLayerIsReadAsItWasWrittenWhileLaterOnesAreMissing) {
  for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
    expect_not_there(layer, 4, fmt::format("layer {} kv head 4 page 0 is not there yet", layer));
    complete(layer);
    for (int32_t done = 0; done <= layer; ++done) expect_layer(done);
  }
  seal("r");
  expect_intact("r", kPages);
}

TEST_F(OpenRequestTest, APageIsThereOnceItIsWrittenAndScored) {
  ASSERT_TRUE(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).ok());
  ASSERT_TRUE(write_generated_page(*store_, "r", {0, 4, 1}, geometry_).ok());
  ASSERT_TRUE(write_generated_page(*store_, "r", {0, 4, 3}, geometry_).ok());
  score(0, 4);
  EXPECT_TRUE(pin("r", 0, 4, 0, 2).ok());
  expect_not_there(0, 4, "layer 0 kv head 4 page 2 is not there yet; 3 of 40 pages are");
  write(0, 5);
  expect_not_there(0, 5, "layer 0 kv head 5 page 0 is not there yet");
  score(0, 5);
  EXPECT_TRUE(pin("r", 0, 5, 0, kPages).ok());
}

TEST_F(OpenRequestTest, ItsLeaseHasNoEndBeforeTheSealAndOneAfterwards) {
  complete(0);
  clock_.advance(std::chrono::hours(48));
  EXPECT_EQ(store_->expire_leases(), 0);
  expect_layer(0);
  for (int32_t layer = 1; layer < geometry_.num_layers; ++layer) complete(layer);
  seal("r");
  clock_.advance(seconds(60));
  EXPECT_EQ(pin("r", 0, 4, 0).error().code, Errc::kNotFound);
  EXPECT_EQ(store_->expire_leases(), 1);
}

TEST_F(OpenRequestTest, ItsLeaseIsNeitherRenewedNorReleasedBeforeTheSeal) {
  complete(0);
  EXPECT_EQ(store_->renew_lease("r", "lease-r", seconds(1), seconds(0)).error().code,
            Errc::kNotFound);
  EXPECT_EQ(store_->release_lease("r", "lease-r").error().code, Errc::kNotFound);
  expect_layer(0);
}

TEST_F(OpenRequestTest, AForeignLeaseNeitherReadsNorSealsIt) {
  for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) complete(layer);
  EXPECT_EQ(store_->pin_pages("r", "stolen", 0, 4, consecutive_pages(0, 1)).error().code,
            Errc::kNotFound);
  EXPECT_EQ(store_->seal("r", "stolen", seconds(60)).error().code, Errc::kNotFound);
  expect_layer(0);
  EXPECT_EQ(store_->open("r", "second").error().code, Errc::kInvalidArgument);
}

TEST_F(OpenRequestTest, AnAbortTakesItFromReadersAndSaysSo) {
  complete(0);
  auto held = pin("r", 0, 4, 2);
  store_->abort("r");
  const auto gone = pin("r", 0, 4, 0);
  EXPECT_EQ(gone.error().code, Errc::kNotFound);
  EXPECT_THAT(gone.error().message, HasSubstr("request 'r' is gone: aborted"));
  // Pages that a reader holds stay until it releases them.
  EXPECT_TRUE(holds_generated_data((*held)->pages()[0], "r", {0, 4, 2}, geometry_));
  held = Error(Errc::kNotFound, "let go");
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) EXPECT_EQ(used(tier), 0);
  ASSERT_TRUE(begin("r", kPages).ok());
  EXPECT_THAT(pin("r", 0, 4, 0).error().message, HasSubstr("not sealed"));
}

TEST_F(KvStoreTest, ARequestThatWasNotOpenedIsNotReadBeforeTheSeal) {
  make_store(40, 0);
  ASSERT_TRUE(begin("r", 2).ok());
  write_all("r", 2);
  EXPECT_EQ(pin("r", 0, 4, 0).error().code, Errc::kNotFound);
  EXPECT_EQ(store_->open("unknown", "l").error().code, Errc::kNotFound);
  seal("r");
  EXPECT_EQ(store_->open("r", "lease-r").error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::kvstore
