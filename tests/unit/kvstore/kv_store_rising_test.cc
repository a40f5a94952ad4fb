// SPDX-License-Identifier: Apache-2.0
// Pages that are pulled often come to a device whose memory is across a bus: which, when, and whose
// places they take.

#include "kvstore/pages/rising_pages.h"
#include "kvstore/rules/placement.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

// Five layers of two heads. A request of six pages has 60, of which 48 are forced: those of layers
// 0 to 2, and pages 0, 4 and 5 of every other head. The device has room for these and six of the
// rest; the last to come, pages 1 to 3 of layer 4 and head 5, are on the host.
class KvStoreRisingTest : public KvStoreTest {
 protected:
  static constexpr int64_t kDeviceSlots = 54;
  static constexpr int64_t kPages = 6;

  void SetUp() override { make_store(kDeviceSlots, 300, 0, /*promotes=*/false); }

  void add_scored(const std::string& id, const std::vector<float>& mass) {
    ASSERT_TRUE(begin(id, kPages).ok());
    write_all(id, kPages);
    for (int32_t layer = 0; layer < 5; ++layer) {
      for (const int32_t head : {4, 5}) {
        ASSERT_TRUE(store_->set_scores(id, layer, head, mass).ok());
      }
    }
    seal(id);
  }
  void pull(const std::string& id, const PageKey& key, int times = 1) {
    for (int i = 0; i < times; ++i) EXPECT_TRUE(pin(id, key.layer, key.kv_head, key.page).ok());
  }
  int64_t tend() {
    int64_t steps = 0;
    while (store_->tend(Deadline::after(Duration::zero()))) ++steps;
    return steps;
  }
  int64_t tend_once_idle() {
    clock_.advance(kBusRest);
    return tend();
  }
  // Does not count as a pull.
  Tier placed(const std::string& id, const PageKey& key) {
    const auto pins = store_->pin_digests(id, "lease-" + id, key.layer, key.kv_head,
                                          consecutive_pages(key.page, 1));
    EXPECT_TRUE(pins.ok());
    return (*pins)->pages()[0].tier;
  }
  int64_t lifted() { return store_->stats().moves[Tier::kHost][Tier::kDevice]; }

  const std::vector<float> mass_{0.3f, 0.01f, 0.01f, 0.01f, 0.3f, 0.3f};
};

TEST_F(KvStoreRisingTest, APageThatIsPulledAgainComesToTheDeviceOnceTheBusIsIdle) {
  add_scored("r", mass_);
  ASSERT_EQ(placed("r", {4, 5, 2}), Tier::kHost);
  pull("r", {4, 5, 2});
  EXPECT_EQ(tend_once_idle(), 0);
  pull("r", {4, 5, 2});
  EXPECT_EQ(tend(), 0);  // others use the bus
  EXPECT_EQ(placed("r", {4, 5, 2}), Tier::kHost);
  EXPECT_EQ(tend_once_idle(), 1);
  EXPECT_EQ(placed("r", {4, 5, 2}), Tier::kDevice);
  EXPECT_EQ(lifted(), 1);
  EXPECT_EQ(tend_once_idle(), 0);
  // It took the place of a page that is worth less, which has its copy on the host.
  EXPECT_EQ(used(Tier::kDevice), kDeviceSlots);
  expect_intact("r", kPages);
}

TEST_F(KvStoreRisingTest, NoPageIsDisplacedThatIsWorthMoreOrPulledAsOften) {
  add_scored("r", mass_);
  // All of the rest.
  for (const int32_t layer : {3, 4}) {
    for (const int32_t head : {4, 5}) {
      for (int64_t page = 1; page <= 3; ++page) pull("r", {layer, head, page}, 3);
    }
  }
  tend_once_idle();
  EXPECT_EQ(placed("r", {4, 5, 2}), Tier::kHost);
  EXPECT_EQ(lifted(), 0);
}

TEST_F(KvStoreRisingTest, APinnedPageStaysWhereItIsAndSoDoesOneOfAnEndedRequest) {
  add_scored("r", mass_);
  pull("r", {4, 5, 1}, 2);
  pull("r", {4, 5, 2}, 2);
  {
    const auto pins = pin("r", 4, 5, 1);
    tend_once_idle();
    EXPECT_EQ(lifted(), 1);
    EXPECT_EQ(placed("r", {4, 5, 1}), Tier::kHost);
    EXPECT_EQ(placed("r", {4, 5, 2}), Tier::kDevice);
  }
  pull("r", {4, 5, 3}, 2);
  ASSERT_TRUE(store_->release_lease("r", "lease-r").ok());
  EXPECT_EQ(tend_once_idle(), 0);
  EXPECT_EQ(used(Tier::kDevice) + used(Tier::kHost), 0);
}

TEST_F(KvStoreRisingTest, ItTakesFreeRoomToo) {
  add_scored("first", mass_);
  add_scored("r", mass_);
  ASSERT_EQ(placed("r", {3, 4, 2}), Tier::kHost);
  ASSERT_TRUE(store_->release_lease("first", "lease-first").ok());
  pull("r", {3, 4, 2}, 2);
  EXPECT_EQ(tend_once_idle(), 1);
  EXPECT_EQ(placed("r", {3, 4, 2}), Tier::kDevice);
}

TEST_F(KvStoreRisingTest, APromptThatBeginsWithAPageCountsAsAPull) {
  add_scored("r", mass_);
  std::vector<CachedPage> cached;
  for (int64_t page = 0; page < 3; ++page) {
    cached.push_back({.page = page, .key = {}});
    cached.back().key[0] = static_cast<std::byte>(page + 1);
  }
  ASSERT_TRUE(store_->remember("r", cached).ok());
  ASSERT_EQ(placed("r", {4, 5, 2}), Tier::kHost);
  const std::vector<int64_t> own{3};
  for (const std::string id : {"second", "third"}) {
    EXPECT_EQ(lifted(), 0) << id;
    ASSERT_TRUE(store_->begin_request(id, 4 * 64, own, cached).ok());
    EXPECT_GT(tend_once_idle(), 0) << id;
  }
  // Of the rest, pages 1 and 2 are eight, and have the room for six; page 3 has none any more.
  int64_t num_there = 0;
  for (const int32_t layer : {3, 4}) {
    for (const int32_t head : {4, 5}) {
      for (int64_t page = 1; page < 3; ++page) {
        num_there += placed("r", {layer, head, page}) == Tier::kDevice ? 1 : 0;
      }
      EXPECT_EQ(placed("r", {layer, head, 3}), Tier::kHost);
    }
  }
  EXPECT_EQ(num_there, 6);
  EXPECT_GT(lifted(), 0);
  expect_intact("r", kPages);
}

TEST_F(KvStoreRisingTest, AStoreWithoutSuchADeviceLeavesThemWhereTheyAre) {
  EXPECT_TRUE(store_->needs_tending());
  make_store(kDeviceSlots, 300, 0, /*promotes=*/true);
  EXPECT_FALSE(store_->needs_tending());
  make_store(0, 300, 0, /*promotes=*/false);
  EXPECT_FALSE(store_->needs_tending());
  add_scored("r", mass_);
  pull("r", {4, 5, 2}, 5);
  EXPECT_EQ(tend_once_idle(), 0);
}

}  // namespace
}  // namespace millrace::kvstore
