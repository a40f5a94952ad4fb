// SPDX-License-Identifier: Apache-2.0
// Memory becomes resident, keeps its bytes, and may go away in the middle.
#include "common/system/prefault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace millrace {
namespace {

class PrefaultTest : public testing::TestWithParam<int> {
 protected:
  PrefaultTest() {
    void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memory_ = {static_cast<std::byte*>(base), kBytes};
  }
  ~PrefaultTest() override { munmap(memory_.data(), kBytes); }

  int64_t num_resident() const {
    std::vector<unsigned char> pages(kBytes / page_bytes());
    EXPECT_EQ(mincore(memory_.data(), kBytes, pages.data()), 0);
    return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  }
  static size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  static constexpr size_t kBytes = (size_t{200} << 20) + (size_t{64} << 10);  // no whole steps
  std::span<std::byte> memory_;
};

TEST_P(PrefaultTest, MakesAllResidentAndChangesNothing) {
  memory_[kBytes - 1] = std::byte{7};
  Prefault prefault(memory_, GetParam());
  memory_[17] = std::byte{9};
  prefault.wait();
  EXPECT_EQ(num_resident(), static_cast<int64_t>(kBytes / page_bytes()));
  EXPECT_EQ(memory_[17], std::byte{9});
  EXPECT_EQ(memory_[kBytes - 1], std::byte{7});
  EXPECT_EQ(memory_[kBytes / 2], std::byte{0});
}

TEST_P(PrefaultTest, TellsOfEveryPieceOnceItIsResident) {
  std::mutex mutex;
  std::vector<bool> told(kBytes / page_bytes());
  Prefault prefault(memory_, GetParam(), [&](std::span<std::byte> piece) {
    const std::lock_guard lock(mutex);
    const auto first = static_cast<size_t>(piece.data() - memory_.data()) / page_bytes();
    std::vector<unsigned char> resident(piece.size() / page_bytes());
    EXPECT_EQ(mincore(piece.data(), piece.size(), resident.data()), 0);
    for (size_t i = 0; i < resident.size(); ++i) {
      EXPECT_EQ(resident[i] & 1, 1);
      EXPECT_FALSE(told[first + i]);
      told[first + i] = true;
    }
  });
  prefault.wait();
  EXPECT_EQ(std::ranges::count(told, true), std::ssize(told));
}

TEST_P(PrefaultTest, EndsBeforeItIsThrough) {
  const Prefault prefault(memory_, GetParam());
}

TEST_P(PrefaultTest, LeavesWhatCannotBeWritten) {
  ASSERT_EQ(mprotect(memory_.data(), kBytes, PROT_READ), 0);
  Prefault prefault(memory_, GetParam());
  prefault.wait();
  EXPECT_EQ(num_resident(), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, PrefaultTest, testing::Values(1, 3));

}  // namespace
}  // namespace millrace
