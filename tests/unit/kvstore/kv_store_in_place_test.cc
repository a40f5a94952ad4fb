// SPDX-License-Identifier: Apache-2.0
// Pages in place, for callers that send or copy them from there.
#include <fcntl.h>

#include <algorithm>

#include "common/system/shared_memory_view.h"
#include "kvstore/tiered_kv_store.h"
#include "tests/unit/kvstore/faulty_memory.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

class KvStoreInPlaceTest : public KvStoreTest {
 protected:
  // A device whose memory is not the host's, a host pool and a disk.
  void make_far_store(int64_t device_slots, int64_t host_slots, int64_t disk_slots) {
    device_->addressable = false;
    const int64_t page_bytes = geometry_.page_bytes();
    store_ = *make_kv_store(
        {.device_bytes = device_slots * page_bytes,
         .host_bytes = host_bytes_for(device_slots, host_slots, disk_slots, geometry_),
         .disk_bytes = disk_slots * page_bytes,
         .disk_directory = disk_slots > 0 ? ::testing::TempDir() : "",
         .shares_memory = true,
         .promotes = false,
         .geometry = geometry_},
        clock_,
        std::make_unique<FaultyMemory>(*MemoryTier::allocate(device_slots, page_bytes), device_));
  }
  std::unique_ptr<PinnedPages> pin_in_place(int64_t count) {
    return *store_->pin_in_place("r", "lease-r", 0, 4, consecutive_pages(0, count));
  }
  bool is_page(std::span<const std::byte> bytes, int64_t page) {
    const auto wanted = page_bytes_of("r", {0, 4, page}, geometry_);
    return std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end());
  }

  std::shared_ptr<Faults> device_ = std::make_shared<Faults>();
};

TEST_F(KvStoreInPlaceTest, PagesInHostMemoryHaveTheirBytesAtOnce) {
  make_store(0, 100);
  add("r", 3);
  const auto pins = pin_in_place(3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        holds_generated_data(pins->pages()[static_cast<size_t>(i)], "r", {0, 4, i}, geometry_));
  }
  EXPECT_EQ(store_->stats().page_hits[Tier::kHost], 3);
}

TEST_F(KvStoreInPlaceTest, PagesOnDiskAreReadByLoadAlone) {
  make_store(0, 0, 100);
  add("r", 3);
  const auto pins = pin_in_place(3);
  for (const auto& page : pins->pages()) {
    EXPECT_TRUE(page.bytes.empty());
    EXPECT_TRUE(page.loose_bytes.empty());
  }
  EXPECT_EQ(store_->stats().page_hits[Tier::kDisk], 0);
  ASSERT_TRUE(pins->load().ok());
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        holds_generated_data(pins->pages()[static_cast<size_t>(i)], "r", {0, 4, i}, geometry_));
  }
  EXPECT_EQ(store_->stats().page_hits[Tier::kDisk], 3);
}

TEST_F(KvStoreInPlaceTest, APageOfAFarDeviceShowsItsCopyOnTheHost) {
  make_far_store(100, 100, 0);
  add("r", 3);
  const auto pins = pin_in_place(3);
  for (int64_t i = 0; i < 3; ++i) {
    const auto& page = pins->pages()[static_cast<size_t>(i)];
    EXPECT_EQ(page.tier, Tier::kDevice);
    EXPECT_TRUE(page.bytes.empty());
    EXPECT_TRUE(is_page(page.loose_bytes, i));
  }
  EXPECT_EQ(device_->num_reads, 0);
}

TEST_F(KvStoreInPlaceTest, PinnedInPlaceStaysWhenItsLeaseHasEnded) {
  make_store(0, 60);  // 6 pages of 10 rows
  add("r", 6);
  auto pins = pin_in_place(2);
  clock_.advance(std::chrono::seconds(61));
  EXPECT_EQ(store_->expire_leases(), 1);
  add("s", 5);
  EXPECT_TRUE(holds_generated_data(pins->pages()[0], "r", {0, 4, 0}, geometry_));
  EXPECT_TRUE(holds_generated_data(pins->pages()[1], "r", {0, 4, 1}, geometry_));
  EXPECT_EQ(used(Tier::kHost), 52);
  pins.reset();
  EXPECT_EQ(used(Tier::kHost), 50);
}

TEST_F(KvStoreInPlaceTest, AnotherLeaseIsRefused) {
  make_store(0, 100);
  add("r", 3);
  EXPECT_EQ(store_->pin_in_place("r", "lease-s", 0, 4, consecutive_pages(0, 1)).error().code,
            Errc::kNotFound);
}

TEST_F(KvStoreInPlaceTest, WhoMapsASharedPoolFindsThePagesInIt) {
  make_far_store(0, 100, 0);
  add("r", 3);
  const auto pins = pin_in_place(3);
  const auto pools = store_->shared_pools();
  ASSERT_EQ(pools.size(), 1u);
  const auto view =
      *SharedMemoryView::map(FileDescriptor(::fcntl(pools[0]->descriptor(), F_DUPFD_CLOEXEC, 0)));
  for (int64_t i = 0; i < 3; ++i) {
    const auto& page = pins->pages()[static_cast<size_t>(i)];
    const auto offset = page.bytes.data() - pools[0]->bytes().data();
    EXPECT_TRUE(is_page(view.bytes().subspan(static_cast<size_t>(offset), page.bytes.size()), i));
  }
}

TEST_F(KvStoreInPlaceTest, PoolsAreNotSharedUnasked) {
  make_store(10, 100);
  EXPECT_TRUE(store_->shared_pools().empty());
}

}  // namespace
}  // namespace millrace::kvstore
