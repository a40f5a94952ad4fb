// SPDX-License-Identifier: Apache-2.0
#include "worker/store/pool_locker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/far_device.h"

namespace millrace::worker {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

// A pool of four pages of the system, none of which is resident at first.
class PoolLockerTest : public ::testing::Test {
 protected:
  PoolLockerTest() {
    void* const mapped = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    MR_CHECK(mapped != MAP_FAILED, "no memory");
    pool_ = {static_cast<std::byte*>(mapped), 4 * kPage};
  }
  ~PoolLockerTest() override { ::munmap(pool_.data(), pool_.size()); }

  std::span<std::byte> page(size_t number) { return pool_.subspan(kPage * number, kPage); }
  std::span<std::byte> make_resident(size_t number) {
    std::ranges::fill(page(number), std::byte{1});
    return page(number);
  }
  bool reached(size_t number) { return device_.make_copy_lane()->reaches(page(number)); }
  static bool wait_until(const std::function<bool()>& done) {
    const auto deadline = Deadline::after(kTimeout);
    while (!done() && !deadline.passed()) std::this_thread::yield();
    return done();
  }

  const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::span<std::byte> pool_;
  test::FarDevice device_{kernels::make_cpu_device({.num_threads = 1})};
};

TEST_F(PoolLockerTest, TheDeviceReachesThePiecesWhileItLives) {
  {
    PoolLocker locker(device_, {});
    locker.add(make_resident(2));
    locker.add(make_resident(0));
    EXPECT_TRUE(wait_until([&] { return reached(0) && reached(2); }));
    EXPECT_FALSE(reached(1));
    EXPECT_EQ(locker.locked_bytes(), std::ssize(page(0)) + std::ssize(page(2)));
  }
  EXPECT_FALSE(reached(0) || reached(2));
}

TEST_F(PoolLockerTest, APieceIsLockedOnceItIsResident) {
  PoolLocker locker(device_, {});
  locker.add(page(1));
  locker.add(make_resident(3));
  EXPECT_TRUE(wait_until([&] { return reached(3); }));  // the first does not hold it up
  EXPECT_FALSE(reached(1));
  make_resident(1);
  EXPECT_TRUE(wait_until([&] { return reached(1); }));
}

TEST_F(PoolLockerTest, NothingIsLockedWhileAPromptRunsThatDoesNotReadIt) {
  PoolLocker locker(device_, {.busy = true});
  locker.add(make_resident(0));
  // Had it looked at the piece, it would have been locked by the time another locker is done.
  PoolLocker other(device_, {});
  other.add(make_resident(1));
  ASSERT_TRUE(wait_until([&] { return reached(1); }));
  EXPECT_FALSE(reached(0));
  locker.set_busy(false);
  EXPECT_TRUE(wait_until([&] { return reached(0); }));
}

TEST_F(PoolLockerTest, AllIsLockedInTheEndWhilePromptsRunThatReadIt) {
  PoolLocker locker(device_, {.busy = true});
  for (size_t number = 0; number < 4; ++number) locker.add(make_resident(number));
  locker.lock_while_busy();
  EXPECT_TRUE(wait_until([&] { return locker.locked_bytes() == std::ssize(pool_); }));
}

TEST_F(PoolLockerTest, KeepsWhatItHasAndTriesNoMoreOnceTheSystemRefuses) {
  PoolLocker locker(device_, {});
  locker.add(make_resident(0));
  ASSERT_TRUE(wait_until([&] { return reached(0); }));
  device_.refuse_locks(true);
  locker.add(make_resident(1));
  ASSERT_TRUE(wait_until([&] { return locker.refused(); }));
  device_.refuse_locks(false);
  locker.add(make_resident(2));
  PoolLocker other(device_, {});
  other.add(make_resident(3));
  ASSERT_TRUE(wait_until([&] { return reached(3); }));
  EXPECT_TRUE(reached(0));
  EXPECT_FALSE(reached(1) || reached(2));
}

TEST_F(PoolLockerTest, EndsAtOnceWithPiecesThatAreNotResident) {
  PoolLocker locker(device_, {});
  locker.add(pool_);
  EXPECT_EQ(locker.locked_bytes(), 0);
}

}  // namespace
}  // namespace millrace::worker
