#include "kvstore/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checksum.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class KvStoreTest : public ::testing::Test {
 protected:
  void make_store(int64_t device_slots, int64_t host_slots, int64_t disk_slots = 0,
                  bool promotes = true) {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store(
        {.device_bytes = device_slots * page_bytes,
         .host_bytes = host_bytes_for(device_slots, host_slots, disk_slots, geometry_),
         .disk_bytes = disk_slots * page_bytes,
         .disk_directory = disk_slots > 0 ? ::testing::TempDir() : "",
         .promotes = promotes,
         .geometry = geometry_},
        clock_);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    store_ = std::move(store).value();
  }

  Result<void> begin(const std::string& id, int64_t num_pages) {
    return store_->begin_request(id, num_pages * 64, iota_pages(num_pages));
  }
  void write_all(const std::string& id, int64_t num_pages) {
    const auto written = write_all_pages(*store_, id, iota_pages(num_pages), geometry_);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
  }
  Placement seal(const std::string& id) {
    auto placement = store_->seal(id, "lease-" + id, seconds(60));
    EXPECT_TRUE(placement.ok()) << placement.error().to_string();
    return placement.ok() ? *placement : Placement{};
  }
  Placement add(const std::string& id, int64_t num_pages) {
    EXPECT_TRUE(begin(id, num_pages).ok());
    write_all(id, num_pages);
    return seal(id);
  }
  auto pin(const std::string& id, int32_t layer, int32_t kv_head, int64_t page, int64_t count = 1) {
    return store_->pin_pages(id, "lease-" + id, layer, kv_head, page, count);
  }
  Tier tier_of(const std::string& id, const PageKey& key) {
    auto pins = pin(id, key.layer, key.kv_head, key.page);
    EXPECT_TRUE(pins.ok());
    return (*pins)->pages()[0].tier;
  }
  void expect_intact(const std::string& id, int64_t num_pages) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        auto pins = pin(id, layer, head, 0, num_pages);
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        for (int64_t page = 0; page < num_pages; ++page) {
          EXPECT_TRUE(
              holds_generated_data((*pins)->pages()[page], id, {layer, head, page}, geometry_))
              << id << " layer " << layer << " head " << head << " page " << page;
        }
      }
    }
  }
  int64_t used(Tier tier) { return store_->stats().tiers[static_cast<int>(tier)].slots_used; }

  const KvGeometry geometry_ = small_geometry();
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
};

TEST_F(KvStoreTest, RefusesReservationBeyondAllTiersWithTheNumbers) {
  make_store(20, 10);
  const auto refused = begin("r", 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("needs 30 pages"));
  EXPECT_THAT(refused.error().message, HasSubstr("room for 29"));
  EXPECT_THAT(refused.error().message, HasSubstr("device 0 of 20"));
}

// 8 dimensions: a digest is 3 * 8 * 4 bytes, an entry at most 64.
TEST_F(KvStoreTest, TheHostPoolAlsoHoldsTheRecordsOfThePagesOfAllTiers) {
  const int64_t page_bytes = geometry_.page_bytes();
  const int64_t record_bytes = 3 * 8 * 4 + 64;
  KvStoreConfig config{.device_bytes = 100 * page_bytes,
                       .host_bytes = 1100 * record_bytes + 10 * (page_bytes + record_bytes),
                       .disk_bytes = 1000 * page_bytes,
                       .disk_directory = ::testing::TempDir(),
                       .geometry = geometry_};
  const auto host_slots = [&] {
    auto store = make_kv_store(config, clock_);
    return store.ok() ? (*store)->stats().tiers[1].slots_total : -1;
  };
  EXPECT_EQ(host_slots(), 10);
  --config.host_bytes;
  EXPECT_EQ(host_slots(), 9);
  config.host_bytes = 1100 * record_bytes;
  EXPECT_EQ(host_slots(), 0);
  --config.host_bytes;
  const auto refused = make_kv_store(config, clock_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(refused.error().message,
              HasSubstr("hold 1100 pages, whose records take 172 KiB of the host pool; it has"));
}

TEST_F(KvStoreTest, FillsASingleTierToTheLastSlot) {
  make_store(20, 0);
  const auto placement = add("r", 2);
  EXPECT_EQ(placement.pages[0], 20);
  expect_intact("r", 2);
}

TEST_F(KvStoreTest, RefusesWhileAnotherRequestHoldsTheRoomAndAcceptsAfterItsRelease) {
  make_store(30, 10);
  add("a", 3);
  EXPECT_EQ(begin("b", 2).error().code, Errc::kExhausted);
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  add("b", 3);
  expect_intact("b", 3);
}

TEST_F(KvStoreTest, CountsPromisedPagesOfARunningRequest) {
  make_store(30, 10);
  ASSERT_TRUE(begin("a", 3).ok());
  EXPECT_EQ(begin("b", 1).error().code, Errc::kExhausted);
  store_->abort("a");
  EXPECT_TRUE(begin("b", 3).ok());
}

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
  // Of three pages one is a sink and two are window. The older sinks are worth more than the newer
  // windows, the older windows less.
  EXPECT_EQ(placement.pages[0], 20);
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
  EXPECT_EQ(placement.pages[0], 70);
  EXPECT_EQ(placement.pages[1], 30);
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
    // A page of the last layer, which found the device full, becomes the best of its heads.
    std::vector<float> scores(10, 0.01f);
    scores[5] = 0.9f;
    for (const int32_t head : {4, 5}) {
      ASSERT_TRUE(store_->set_scores("r", 4, head, scores).ok());
    }
    const int64_t before = store_->stats().evictions;
    const auto placement = seal("r");
    EXPECT_EQ(placement.pages[0], 20);
    EXPECT_EQ(store_->stats().evictions > before, promotes);
    expect_intact("r", 10);
  }
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
  EXPECT_EQ(placement.pages[0], 20);
  EXPECT_EQ(placement.pages[2], 80);
  // 10 sinks come before all else, and 10 of the 20 window pages.
  for (int32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(tier_of("r", {layer, 4, 0}), Tier::kDevice) << layer;
    EXPECT_EQ(tier_of("r", {layer, 5, 0}), Tier::kDevice) << layer;
  }
  EXPECT_GT(store_->stats().evictions, 0);
  expect_intact("r", 10);
}

TEST_F(KvStoreTest, NeverExceedsItsBudgets) {
  make_store(20, 20, 100);
  add("a", 4);
  add("b", 5);
  const auto stats = store_->stats();
  for (const TierUse& tier : stats.tiers) {
    EXPECT_LE(tier.slots_used, tier.slots_total);
    EXPECT_EQ(tier.slot_bytes, geometry_.page_bytes());
  }
  expect_intact("a", 4);
  expect_intact("b", 5);
}

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
  for (const auto& [first, count] : {std::pair{3, 2}, {4, 1}, {7, 2}, {6, 0}, {-1, 1}, {2, 4}}) {
    const auto outside = pin("r", 0, 4, first, count);
    ASSERT_FALSE(outside.ok()) << first << " " << count;
    EXPECT_EQ(outside.error().code, Errc::kNotFound);
  }
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
  EXPECT_THAT(pin("r", 0, 4, 1, 2).error().message, HasSubstr("2 pages from 1"));
  EXPECT_EQ(pin("r", 0, 4, 0, INT64_MAX).error().code, Errc::kNotFound);
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

TEST_F(KvStoreTest, TellsForeignExpiredReleasedAndUnknownApart) {
  make_store(100, 100);
  add("r", 1);
  add("s", 1);
  EXPECT_THAT(store_->pin_pages("r", "lease-s", 0, 4, 0, 1).error().message,
              HasSubstr("not the one it is held under"));
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

TEST_F(KvStoreTest, RenewalMovesTheEndOfALease) {
  make_store(100, 0);
  add("r", 1);
  clock_.advance(seconds(50));
  ASSERT_TRUE(store_->renew_lease("r", "lease-r", seconds(60)).ok());
  clock_.advance(seconds(50));
  EXPECT_EQ(store_->expire_leases(), 0);
  EXPECT_TRUE(pin("r", 0, 4, 0).ok());
  EXPECT_FALSE(store_->renew_lease("r", "foreign", seconds(60)).ok());
  clock_.advance(seconds(10));
  EXPECT_FALSE(store_->renew_lease("r", "lease-r", seconds(60)).ok());
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

TEST_F(KvStoreTest, ReadsDiskPagesIntoMemoryOfThePin) {
  make_store(10, 0, 50);
  add("r", 5);
  auto pins = pin("r", 1, 4, 1, 3);
  ASSERT_TRUE(pins.ok());
  EXPECT_EQ((*pins)->pages()[0].tier, Tier::kDisk);
  EXPECT_EQ(store_->stats().page_hits[2], 3);
  expect_intact("r", 5);
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

TEST_F(KvStoreTest, RefusesAGeometryOrBudgetItCannotHold) {
  KvStoreConfig config;
  config.device_bytes = 1 << 20;
  config.geometry = geometry_;
  config.geometry.num_layers = 0;
  EXPECT_EQ(make_kv_store(config, clock_).error().code, Errc::kInvalidArgument);
  config.geometry = geometry_;
  config.host_bytes = -1;
  EXPECT_EQ(make_kv_store(config, clock_).error().code, Errc::kInvalidArgument);
  config.host_bytes = 0;
  config.disk_bytes = 1 << 20;
  config.disk_directory = "/nonexistent/place";
  const auto no_disk = make_kv_store(config, clock_);
  EXPECT_EQ(no_disk.error().code, Errc::kIo);
  EXPECT_THAT(no_disk.error().message, HasSubstr("/nonexistent/place"));
}

// A request of 4 pages over three tiers whose layers come one by one.
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
  EXPECT_EQ(store_->renew_lease("r", "lease-r", seconds(1)).error().code, Errc::kNotFound);
  EXPECT_EQ(store_->release_lease("r", "lease-r").error().code, Errc::kNotFound);
  expect_layer(0);
}

TEST_F(OpenRequestTest, AForeignLeaseNeitherReadsNorSealsIt) {
  for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) complete(layer);
  EXPECT_EQ(store_->pin_pages("r", "stolen", 0, 4, 0, 1).error().code, Errc::kNotFound);
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
  // What a reader holds stays until it lets go.
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
