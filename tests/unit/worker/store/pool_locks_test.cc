#include "worker/store/pool_locks.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/far_device.h"

namespace millrace::worker {
namespace {

class PoolLocksTest : public ::testing::Test {
 protected:
  std::span<std::byte> piece(size_t number) { return std::span(pool_).subspan(64 * number, 64); }
  bool reached(size_t number) { return device_.make_copy_lane()->reaches(piece(number)); }

  std::vector<std::byte> pool_ = std::vector<std::byte>(256);
  test::FarDevice device_{kernels::make_cpu_device({.num_threads = 1})};
};

TEST_F(PoolLocksTest, HaveTheDeviceReachThePiecesWhileTheyLive) {
  {
    PoolLocks locks(device_);
    locks.add(piece(2));
    locks.add(piece(0));
    EXPECT_TRUE(reached(0) && reached(2));
    EXPECT_FALSE(reached(1));
  }
  EXPECT_FALSE(reached(0) || reached(2));
}

TEST_F(PoolLocksTest, KeepWhatTheyHaveAndTryNoMoreOnceTheSystemRefuses) {
  PoolLocks locks(device_);
  locks.add(piece(0));
  device_.refuse_locks(true);
  locks.add(piece(1));
  device_.refuse_locks(false);
  locks.add(piece(2));
  EXPECT_TRUE(reached(0));
  EXPECT_FALSE(reached(1) || reached(2));
}

}  // namespace
}  // namespace millrace::worker
