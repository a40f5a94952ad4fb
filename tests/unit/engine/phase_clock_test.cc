// SPDX-License-Identifier: Apache-2.0
// Phases fill the time between the first and the last mark, even if there are more of them than
// marks that a device keeps.
#include "engine/phase_clock.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/far_device.h"

namespace millrace::engine {
namespace {

const Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

class PhaseClockTest : public testing::Test {
 protected:
  void settle(kernels::TimeMark mark) {
    ASSERT_TRUE(device_.wait_for(mark, soon()).ok());
    clock_.settle(mark);
  }

  test::FarDevice device_{kernels::make_cpu_device({.num_threads = 1})};
  PhaseTimes times_;
  PhaseClock clock_{device_, times_};
};

TEST_F(PhaseClockTest, PhasesFillTheTime) {
  const auto begin = device_.mark();
  clock_.enter(Phase::kQkv);
  clock_.enter(Phase::kQkv);
  clock_.enter(Phase::kAttention);
  const auto end = clock_.stop();
  settle(end);
  EXPECT_LE(times_[Phase::kQkv] + times_[Phase::kAttention], device_.elapsed_s(begin, end));
  EXPECT_GT(times_[Phase::kQkv], 0);
  EXPECT_GT(times_[Phase::kAttention], 0);
  EXPECT_EQ(times_[Phase::kMlp], 0);
}

TEST_F(PhaseClockTest, ALayerMayHaveMorePhasesThanMarksAreKept) {
  for (int layer = 0; layer < 3; ++layer) {
    for (int64_t tile = 0; tile < kernels::kMarksKept; ++tile) {
      clock_.enter(Phase::kMlp);
      clock_.enter(Phase::kQkv);
    }
    settle(device_.mark());
  }
  settle(clock_.stop());
  EXPECT_GT(times_[Phase::kMlp], 0);
  EXPECT_GT(times_[Phase::kQkv], 0);
}

}  // namespace
}  // namespace millrace::engine
