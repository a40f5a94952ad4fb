// SPDX-License-Identifier: Apache-2.0
// What the store does when memory outside its pools is short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "kvstore/kv_store.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

using ::testing::HasSubstr;

TEST(KvStoreMemory, PagesReadFromDiskAreHeldWithinABudget) {
  const test::TempDirectory directory;
  const auto geometry = small_geometry();
  constexpr int64_t kPages = 4;
  const int64_t slots = kPages * geometry.num_layers * geometry.num_kv_heads;
  const auto store = *make_kv_store({.host_bytes = host_bytes_for(0, 0, slots, geometry),
                                     .disk_bytes = slots * geometry.page_bytes(),
                                     .disk_directory = directory.path(),
                                     .read_bytes = 3 * geometry.page_bytes(),
                                     .geometry = geometry},
                                    Clock::steady());
  const auto pages = iota_pages(kPages);
  ASSERT_TRUE(store->begin_request("r", kPages * 64, pages).ok());
  ASSERT_TRUE(write_all_pages(*store, "r", pages, geometry).ok());
  ASSERT_TRUE(store->seal("r", "lease", std::chrono::hours(1)).ok());
  const auto pin = [&](int64_t count) {
    return store->pin_pages("r", "lease", 0, 4, consecutive_pages(0, count));
  };

  auto first = pin(2);
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  const auto refused = pin(2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_EQ(store->stats().pinned_pages, 2);  // those that were refused are not
  EXPECT_TRUE(store->pin_digests("r", "lease", 0, 4, consecutive_pages(0, kPages)).ok());
  first = pin(1);  // beside the two, and these go
  EXPECT_TRUE(pin(2).ok());
}

int64_t num_resident(std::span<std::byte> memory) {
  std::vector<unsigned char> pages(memory.size() / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(mincore(memory.data(), memory.size(), pages.data()), 0);
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
}

TEST(KvStoreMemory, PrefaultMakesTheHostPoolResidentWhileItIsUsed) {
  const auto geometry = small_geometry();
  constexpr int64_t kSlots = 4096;
  const auto store = *make_kv_store({.host_bytes = host_bytes_for(0, kSlots, 0, geometry),
                                     .shares_memory = true,
                                     .geometry = geometry},
                                    Clock::steady());
  ASSERT_EQ(store->shared_pools().size(), 1u);
  // Whole pages of the operating system.
  const auto pool = store->shared_pools()[0]->bytes().first(
      static_cast<size_t>(kSlots * geometry.page_bytes() >> 12 << 12));
  const int64_t all = std::ssize(pool) / sysconf(_SC_PAGESIZE);
  EXPECT_LT(num_resident(pool), all);
  store->prefault(2);
  const auto pages = iota_pages(4);
  ASSERT_TRUE(store->begin_request("r", 4 * 64, pages).ok());
  ASSERT_TRUE(write_all_pages(*store, "r", pages, geometry).ok());
  while (num_resident(pool) < all) std::this_thread::yield();
  ASSERT_TRUE(store->seal("r", "lease", std::chrono::hours(1)).ok());
  const auto pinned = store->pin_pages("r", "lease", 4, 5, consecutive_pages(3, 1));
  ASSERT_TRUE(pinned.ok()) << pinned.error().to_string();
  EXPECT_TRUE(holds_generated_data((*pinned)->pages()[0], "r", {4, 5, 3}, geometry));
}

// A sanitizer's malloc ends the process if it finds no memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MR_TEST_SANITIZED 1
#else
#define MR_TEST_SANITIZED 0
#endif

// Limits the address space to what the process has now, plus `more_bytes`.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(int64_t more_bytes) {
    getrlimit(RLIMIT_AS, &before_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(pages * 4096 + more_bytes);
    setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(KvStoreMemory, ARequestWithoutMemoryForItsRecordsIsRefusedAndTheNextIsNot) {
  if (MR_TEST_SANITIZED != 0) GTEST_SKIP() << "malloc of sanitizers ends the process";
  const KvGeometry geometry{
      .num_layers = 64, .num_kv_heads = 8, .head_dim = 4096, .dtype = DType::kBFloat16};
  constexpr int64_t kPages = 40;  // 1 GB of digests, which nobody touches
  const int64_t slots = kPages * 64 * 8;
  const auto store = *make_kv_store(
      {.host_bytes = host_bytes_for(0, slots, 0, geometry), .geometry = geometry}, Clock::steady());
  const auto pages = iota_pages(kPages);
  {
    const AddressSpaceLimit limit(int64_t{256} << 20);
    const auto begun = store->begin_request("r", kPages * 64, pages);
    ASSERT_FALSE(begun.ok());
    EXPECT_EQ(begun.error().code, Errc::kExhausted);
    EXPECT_THAT(begun.error().message, HasSubstr("cannot allocate records of 20480 pages"));
  }
  EXPECT_TRUE(store->begin_request("r", kPages * 64, pages).ok());
}

}  // namespace
}  // namespace millrace::kvstore
