// SPDX-License-Identifier: Apache-2.0
// Loads cached pages to a device that faults if the host touches its memory: from memory (its own,
// or the host's, which it may or may not reach) and from disk, one prefix after another, whatever
// happened to earlier ones.
#include "worker/staging/page_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/cpu_device.h"
#include "kvstore/kv_store.h"
#include "tests/support/far_device.h"
#include "tests/support/random_data.h"
#include "tests/unit/kvstore/faulty_memory.h"
#include "worker/staging/store_prefix.h"
#include "worker/store/device_tier.h"

namespace millrace::worker {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kFirstHead = 4;
constexpr int32_t kLayers = 3;
constexpr int32_t kHeadDim = 8;
constexpr int64_t kHeadFloats = 64 * kHeadDim;  // of K or V of a page
constexpr int64_t kPages = 300;                 // more than two chunks of a head
constexpr auto kLease = std::chrono::hours(1);

constexpr int64_t kAllPages = kPages * kLayers * kHeads;

enum class Reach {
  kHosts,   // the device's memory is the host's
  kOwn,     // it has its own, and reaches none of the host's
  kLocked,  // and all pages that lie in the host's
  kTier,    // where the pages lie
};

class PageReaderTest : public testing::TestWithParam<Reach> {
 protected:
  PageReaderTest() {
    constexpr int64_t kSlots = (kPages + 8) * kLayers * kHeads;
    std::unique_ptr<kvstore::SlotMemory> memory;
    if (GetParam() == Reach::kTier) {
      memory = must(DeviceTier::create(far_, kSlots, geometry_.page_bytes()));
    } else {
      memory = must(kvstore::MemoryTier::allocate(kSlots, geometry_.page_bytes()));
      pool_ = {const_cast<std::byte*>(memory->address(0).data()),
               static_cast<size_t>(kSlots * geometry_.page_bytes())};
      memory = std::make_unique<kvstore::FaultyMemory>(std::move(memory), faults_);
    }
    if (GetParam() == Reach::kLocked) lock_ = must(far_.lock_host(pool_));
    store_ = must(kvstore::make_kv_store({.device_bytes = kSlots * geometry_.page_bytes(),
                                          .host_bytes = kSlots * geometry_.record_bytes(),
                                          .geometry = geometry_},
                                         Clock::steady(), std::move(memory)));
    reader_ = must(PageReader::create(*device_, store_->geometry(), /*num_threads=*/3));
    remember("whole");
  }

  template <typename T>
  static T must(Result<T> result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
    return *std::move(result);
  }

  static std::vector<float> page_of(int32_t layer, int32_t head, int64_t page) {
    return test::random_normals(static_cast<uint64_t>((layer * kHeads + head) * kPages + page + 1),
                                2 * kHeadFloats);
  }
  static std::vector<kvstore::CachedPage> chain() {
    std::vector<kvstore::CachedPage> pages;
    for (int64_t page = 0; page < kPages; ++page) {
      pages.push_back({.page = page});
      pages.back().key[0] = static_cast<std::byte>(page % 256);
      pages.back().key[1] = static_cast<std::byte>(page / 256);
    }
    return pages;
  }
  void remember(const std::string& id) {
    const auto numbers = kvstore::consecutive_pages(0, kPages);
    MR_CHECK(store_->begin_request(id, kPages * 64, numbers).ok(), "no room");
    const std::vector<float> digest(kHeadDim), scores(kPages);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t head = 0; head < kHeads; ++head) {
        for (const int64_t page : numbers) {
          const auto rows = page_of(layer, head, page);
          const auto written = store_->write_page(
              id, {.layer = layer, .kv_head = kFirstHead + head, .page = page},
              std::as_bytes(std::span(rows)), {.min = digest, .max = digest, .radius = digest});
          MR_CHECK(written.ok(), "{}", written.error().to_string());
        }
        MR_CHECK(store_->set_scores(id, layer, kFirstHead + head, scores).ok(), "scores");
      }
    }
    MR_CHECK(store_->seal(id, "lease", kLease).ok() && store_->remember(id, chain()).ok(), "lost");
  }

  // Loads the request's prefix into rows of a longer prompt, in pieces of `pages_at_once`.
  Result<void> load_all(const std::string& id, int64_t pages_at_once, int32_t first_layer = 0) {
    const int64_t stride = (kPages + 3) * 64;
    const int64_t bytes = kHeads * stride * kHeadDim * int64_t{sizeof(float)};
    const auto k = must(device_->allocate(bytes));
    const auto v = must(device_->allocate(bytes));
    if (no_room_) far_.refuse_larger_than(0);
    StorePins pins(*store_, id);
    StorePrefix prefix(*device_, *reader_, pins, kvstore::consecutive_pages(0, kPages));
    for (int32_t layer = first_layer; layer < kLayers; ++layer) {
      for (int64_t first = 0; first < kPages; first += pages_at_once) {
        const int64_t offset = first * 64 * kHeadDim * int64_t{sizeof(float)};
        MR_RETURN_IF_ERROR(prefix.load(
            layer, first, std::min(pages_at_once, kPages - first),
            {.k = k.as<std::byte>() + offset, .v = v.as<std::byte>() + offset, .stride = stride}));
      }
      std::vector<float> rows_k(static_cast<size_t>(bytes) / sizeof(float)), rows_v(rows_k.size());
      device_->copy(rows_k.data(), k.data(), bytes);
      device_->copy(rows_v.data(), v.data(), bytes);
      MR_CHECK(device_->synchronize(Deadline::after(kLease)).ok(), "the device hangs");
      expect_layer(layer, rows_k, rows_v, stride * kHeadDim);
    }
    return {};
  }
  static void expect_layer(int32_t layer, const std::vector<float>& k, const std::vector<float>& v,
                           int64_t head_floats) {
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int64_t page = 0; page < kPages; ++page) {
        const auto expected = page_of(layer, head, page);
        const int64_t at = head * head_floats + page * kHeadFloats;
        EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + kHeadFloats, k.begin() + at))
            << "K of layer " << layer << " head " << head << " page " << page;
        EXPECT_TRUE(std::equal(expected.begin() + kHeadFloats, expected.end(), v.begin() + at))
            << "V of layer " << layer << " head " << head << " page " << page;
      }
    }
  }
  void begin_behind(const std::string& id) {
    const auto own = kvstore::consecutive_pages(kPages, 2);
    const auto begun = store_->begin_request(id, (kPages + 2) * 64, own, chain());
    MR_CHECK(begun.ok(), "{}", begun.error().to_string());
  }

  const kvstore::KvGeometry geometry_ = {.num_layers = kLayers,
                                         .num_kv_heads = kHeads,
                                         .first_kv_head = kFirstHead,
                                         .head_dim = kHeadDim};
  std::shared_ptr<kvstore::Faults> faults_ = std::make_shared<kvstore::Faults>();
  std::unique_ptr<kernels::Device> near_ = kernels::make_cpu_device({.num_threads = 1});
  test::FarDevice far_{kernels::make_cpu_device({.num_threads = 1})};
  kernels::Device* device_ =
      GetParam() == Reach::kHosts ? near_.get() : static_cast<kernels::Device*>(&far_);
  std::unique_ptr<kvstore::KvStore> store_;
  std::span<std::byte> pool_;
  kernels::HostLock lock_;
  bool no_room_ = false;                // for anything but the rows
  std::unique_ptr<PageReader> reader_;  // last: ends before its device
};

TEST_P(PageReaderTest, BringsEveryPageToItsRows) {
  EXPECT_EQ(reader_->runs_beside(), GetParam() != Reach::kHosts);
  for (const int64_t pages_at_once : {kPages, int64_t{128}, int64_t{7}}) {
    const auto id = fmt::format("behind, by {}", pages_at_once);
    begin_behind(id);
    const auto loaded = load_all(id, pages_at_once);
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    store_->abort(id);
  }
  const bool gathers = GetParam() == Reach::kLocked || GetParam() == Reach::kTier;
  EXPECT_EQ(far_.num_gathered(), gathers ? 3 * kAllPages : 0);
  const auto in_device_memory = reader_->loads()[kvstore::Tier::kDevice];
  EXPECT_EQ(in_device_memory.bytes, 3 * kAllPages * geometry_.page_bytes());
}

TEST_P(PageReaderTest, BringsPagesOfWhichTheDeviceReachesSome) {
  if (GetParam() != Reach::kLocked) GTEST_SKIP() << "of a device that reaches pages";
  lock_ = {};
  lock_ = must(far_.lock_host(pool_.first(pool_.size() / 2)));
  begin_behind("behind");
  const auto loaded = load_all("behind", kPages);
  EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_GT(far_.num_gathered(), 0);
  EXPECT_LT(far_.num_gathered(), kAllPages);
}

// As after a layer that another source could not deliver.
TEST_P(PageReaderTest, BeginsAtAnyLayer) {
  begin_behind("behind");
  const auto loaded = load_all("behind", kPages, /*first_layer=*/1);
  EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
}

TEST_P(PageReaderTest, BringsPagesWhenAskedWhereTheDeviceHasNoRoomForAStage) {
  begin_behind("behind");
  no_room_ = true;
  const auto loaded = load_all("behind", 100);
  EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
}

TEST_P(PageReaderTest, ADamagedPageEndsThePrefixThatHasItAndNoOther) {
  if (GetParam() == Reach::kTier) GTEST_SKIP() << "of memory whose reads fail";
  begin_behind("behind");
  faults_->addressable = false;
  faults_->flip_read = true;
  const auto damaged = load_all("behind", kPages);
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code, Errc::kCorrupt) << damaged.error().to_string();
  faults_->flip_read = false;
  const auto again = load_all("behind", kPages);
  EXPECT_TRUE(again.ok()) << again.error().to_string();
}

TEST_P(PageReaderTest, APageDamagedInMemoryIsFoundAndNamed) {
  begin_behind("behind");
  {
    const auto pins = must(
        store_->pin_prefix("behind", 1, kFirstHead + 1, kvstore::consecutive_pages(kPages - 1, 1)));
    const auto& page = pins->pages()[0];
    if (GetParam() == Reach::kTier) {
      const auto wrong = std::byte{0x5a};
      far_.copy(const_cast<std::byte*>(page.device_bytes) + 17, &wrong, 1);
      MR_CHECK(far_.synchronize(Deadline::after(kLease)).ok(), "the device hangs");
    } else {
      const_cast<std::byte&>(page.bytes[17]) ^= std::byte{1};
    }
  }
  const auto damaged = load_all("behind", kPages);
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code, Errc::kCorrupt);
  EXPECT_THAT(damaged.error().message,
              testing::HasSubstr("'behind': layer 1 kv head 5 page 299 in device memory"));
}

TEST_P(PageReaderTest, ARequestThatIsNotHeldHasNoPrefix) {
  const auto refused = load_all("never begun", kPages);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kNotFound) << refused.error().to_string();
}

std::string name_of(const testing::TestParamInfo<Reach>& test) {
  switch (test.param) {
    case Reach::kHosts:
      return "TheHosts";
    case Reach::kOwn:
      return "OfItsOwn";
    case Reach::kLocked:
      return "OfItsOwnAndLocked";
    case Reach::kTier:
      return "OfItsOwnWithThePages";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Memory, PageReaderTest,
                         testing::Values(Reach::kHosts, Reach::kOwn, Reach::kLocked, Reach::kTier),
                         name_of);

}  // namespace
}  // namespace millrace::worker
