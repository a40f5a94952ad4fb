// SPDX-License-Identifier: Apache-2.0
// The widest vectors differ only in width, so 128 bits stand for all of them here.
#define MR_VECTOR_BYTES 16
#include "kernels/cpu/attention/attention_vector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/dtype.h"

namespace millrace::kernels::cpu {
namespace {

float exp2_of(float x) {
  return exp2(broadcast(x))[0];
}

TEST(AttentionVector, Exp2IsWithinItsBound) {
  double worst = 0;
  for (float x = -126.0F; x <= 1.0F; x += 0.000997F) {
    const double exact = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp2_of(x) - exact) / exact);
  }
  EXPECT_LT(worst, 2e-7);
}

TEST(AttentionVector, Exp2OfZeroIsOne) {
  EXPECT_EQ(exp2_of(0.0F), 1.0F);
}

TEST(AttentionVector, Exp2OfWhatIsTooSmallIsZero) {
  EXPECT_EQ(exp2_of(-126.5F), 0.0F);
  EXPECT_EQ(exp2_of(-1e30F), 0.0F);
  EXPECT_EQ(exp2_of(-std::numeric_limits<float>::infinity()), 0.0F);
}

TEST(AttentionVector, Exp2KeepsNan) {
  EXPECT_TRUE(std::isnan(exp2_of(std::nanf(""))));
}

TEST(AttentionVector, WidensEveryFloat16) {
  for (uint32_t bits = 0; bits < 0x10000; bits += kLanes) {
    uint16_t halves[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i) halves[i] = static_cast<uint16_t>(bits + i);
    const VecF widened = load_float16(halves);
    for (uint32_t i = 0; i < kLanes; ++i) {
      const float expected = to_float(Float16{halves[i]});
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(widened[i])) << halves[i];
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]), std::bit_cast<uint32_t>(expected));
      }
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cpu
