// SPDX-License-Identifier: Apache-2.0
// A lane gathers pages from locked host memory and from the GPU's own. Tests where they go, and
// that it finds the checksum that the host's library computes.
#include "kernels/api/gather_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <vector>

#include "common/checksum.h"
#include "kernels/cuda/cuda_device.h"

namespace millrace::kernels {
namespace {

const Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

// Pages of 64 tokens with head_dim 64, 128 and 256 in 16 bits, and other sizes that the kernel
// takes.
class GatherPagesTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    auto device = make_cuda_device({});
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = std::move(*device);
    void* base =
        mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(base, MAP_FAILED);
    pool_ = {static_cast<std::byte*>(base), kPoolBytes};
    std::mt19937_64 random(7);
    std::ranges::generate(pool_, [&] { return static_cast<std::byte>(random()); });
    // In two pieces, so that a page may lie in both.
    constexpr size_t kFirst = kPoolBytes / 2 + 4096;
    for (const auto piece : {pool_.first(kFirst), pool_.subspan(kFirst)}) {
      auto lock = device_->lock_host(piece);
      ASSERT_TRUE(lock.ok()) << lock.error().message;
      locks_.push_back(std::move(*lock));
    }
    lane_ = device_->make_copy_lane();
    // Slots in no particular order.
    for (size_t at = 0; at + page_bytes() <= kPoolBytes; at += page_bytes()) {
      const auto bytes = pool_.subspan(at, page_bytes());
      pages_.push_back({.bytes = bytes.data(), .checksum = checksum(bytes)});
    }
    std::ranges::shuffle(pages_, random);
  }
  void TearDown() override {
    locks_.clear();
    if (!pool_.empty()) munmap(pool_.data(), pool_.size());
  }

  static size_t page_bytes() { return static_cast<size_t>(GetParam()); }

  // Gathers the first `count` pages between bytes that must stay untouched. Returns the contents of
  // device memory afterwards.
  std::pair<std::vector<std::byte>, std::vector<std::byte>> gather(int64_t count,
                                                                   int64_t num_in_device = 0) {
    const int64_t bytes = count * GetParam() / 2 + 2 * kGuard;
    std::pair<std::vector<std::byte>, std::vector<std::byte>> halves;
    const auto k = device_->allocate(bytes);
    const auto v = device_->allocate(bytes);
    halves.first.assign(static_cast<size_t>(bytes), std::byte{0xa5});
    halves.second = halves.first;
    device_->copy(k->data(), halves.first.data(), bytes);
    device_->copy(v->data(), halves.second.data(), bytes);
    lane_->follow();
    lane_->gather_pages({.pages = std::span(pages_).first(static_cast<size_t>(count)),
                         .page_bytes = GetParam(),
                         .k = k->as<std::byte>() + kGuard,
                         .v = v->as<std::byte>() + kGuard,
                         .num_in_device = num_in_device});
    EXPECT_TRUE(lane_->synchronize(soon()).ok());
    device_->copy(halves.first.data(), k->data(), bytes);
    device_->copy(halves.second.data(), v->data(), bytes);
    EXPECT_TRUE(device_->synchronize(soon()).ok());
    return halves;
  }

  static constexpr size_t kPoolBytes = size_t{8} << 20;
  static constexpr int64_t kGuard = 256;
  std::unique_ptr<Device> device_;
  std::span<std::byte> pool_;
  std::vector<HostLock> locks_;
  std::unique_ptr<CopyLane> lane_;
  std::vector<SourcePage> pages_;
};

TEST_P(GatherPagesTest, BringsEachHalfToItsRowsAndNothingBeside) {
  const auto half = static_cast<int64_t>(page_bytes() / 2);
  for (const int64_t count : {1, 5, 6, 7, 13, 127, 128}) {
    const auto [k, v] = gather(count);
    EXPECT_EQ(lane_->damaged_page(), std::nullopt) << count;
    for (const auto& [rows, offset] : {std::pair{&k, int64_t{0}}, std::pair{&v, half}}) {
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* page = pages_[static_cast<size_t>(i)].bytes + offset;
        EXPECT_TRUE(std::equal(page, page + half, rows->begin() + kGuard + i * half))
            << "page " << i << " of " << count;
      }
      const auto is_left = [](std::byte byte) { return byte == std::byte{0xa5}; };
      EXPECT_TRUE(std::all_of(rows->begin(), rows->begin() + kGuard, is_left));
      EXPECT_TRUE(std::all_of(rows->end() - kGuard, rows->end(), is_left));
    }
  }
}

TEST_P(GatherPagesTest, FindsAPageOfWhichOneBitIsWrong) {
  const size_t last = page_bytes() - 1;
  for (const size_t place : {size_t{0}, size_t{63}, size_t{1024} - 64, size_t{1023}, last - 1024,
                             last - 64, last - 8, last}) {
    const int64_t number = static_cast<int64_t>(place % 11);
    auto& byte = const_cast<std::byte&>(pages_[static_cast<size_t>(number)].bytes[place]);
    byte ^= std::byte{0x10};
    gather(11);
    EXPECT_EQ(lane_->damaged_page(), number) << "byte " << place;
    byte ^= std::byte{0x10};
    gather(11);
    EXPECT_EQ(lane_->damaged_page(), std::nullopt);
  }
}

TEST_P(GatherPagesTest, BringsPagesOfItsOwnMemoryBesideThoseOfTheHost) {
  constexpr int64_t kCount = 128;
  const auto half = static_cast<int64_t>(page_bytes() / 2);
  const std::vector<SourcePage> on_host(pages_.begin(), pages_.begin() + kCount);
  const auto memory = device_->allocate(kCount * GetParam());
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  for (const int64_t step : {2, 1}) {  // every other page, then all
    for (int64_t i = 0; i < kCount; i += step) {
      const auto& page = on_host[static_cast<size_t>(i)];
      auto* const slot = memory->as<std::byte>() + i * GetParam();
      // By way of memory that is not locked: a page may lie in two locked pieces, which a copy by
      // the driver does not accept.
      const std::vector<std::byte> bytes(page.bytes, page.bytes + GetParam());
      device_->copy(slot, bytes.data(), GetParam());
      ASSERT_TRUE(device_->synchronize(soon()).ok());
      pages_[static_cast<size_t>(i)].bytes = slot;
    }
    const auto [k, v] = gather(kCount, kCount / step);
    EXPECT_EQ(lane_->damaged_page(), std::nullopt);
    for (int64_t i = 0; i < kCount; ++i) {
      const std::byte* page = on_host[static_cast<size_t>(i)].bytes;
      EXPECT_TRUE(std::equal(page, page + half, k.begin() + kGuard + i * half)) << i;
      EXPECT_TRUE(std::equal(page + half, page + 2 * half, v.begin() + kGuard + i * half)) << i;
    }
    for (const size_t damaged : {size_t{2}, size_t{kCount - 1}}) {
      pages_[damaged].checksum ^= 1;
      gather(kCount, kCount / step);
      EXPECT_EQ(lane_->damaged_page(), static_cast<int64_t>(damaged));
      pages_[damaged].checksum ^= 1;
    }
  }
}

TEST_P(GatherPagesTest, ReachesWhatIsLockedAndNoMore) {
  EXPECT_TRUE(lane_->reaches(pool_));
  locks_.pop_back();
  EXPECT_FALSE(lane_->reaches(pool_));
  EXPECT_TRUE(lane_->reaches(pool_.first(kPoolBytes / 2)));
  EXPECT_FALSE(lane_->reaches(pool_.subspan(kPoolBytes / 2 + 4096, 1)));
}

TEST_P(GatherPagesTest, MemoryThatIsNotThereIsNotLocked) {
  const auto pool = std::exchange(pool_, {});
  locks_.clear();
  ASSERT_EQ(munmap(pool.data(), pool.size()), 0);
  EXPECT_FALSE(device_->lock_host(pool).ok());
  const auto memory = device_->allocate(1024);  // and the device goes on
  EXPECT_TRUE(memory.ok());
  EXPECT_TRUE(device_->synchronize(soon()).ok());
}

INSTANTIATE_TEST_SUITE_P(PageBytes, GatherPagesTest,
                         ::testing::Values(2048, 7 * 1024, 9 * 1024, 16 * 1024, 32 * 1024,
                                           64 * 1024));

}  // namespace
}  // namespace millrace::kernels
