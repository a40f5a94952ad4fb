// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows/row_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/random_data.h"
#include "tests/unit/kernels/contexts.h"

namespace millrace::kernels::cpu {
namespace {

TEST(RowKernels, WidensEveryFloat16) {
  std::vector<Float16> halves(1 << 16);
  for (uint32_t bits = 0; bits < halves.size(); ++bits) {
    halves[bits].bits = static_cast<uint16_t>(bits);
  }
  std::vector<float> widened(halves.size());
  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    row_kernels(context.simd).widen_f16(halves.data(), std::ssize(halves), widened.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]), std::bit_cast<uint32_t>(to_float(halves[i])))
          << "half " << i;
    }
  }
}

TEST(RowKernels, NarrowsToTheNearestEvenBFloat16) {
  // Every upper half, with lower halves around the tie; includes infinities and NaNs.
  std::vector<float> values;
  for (uint32_t upper = 0; upper < (1u << 16); ++upper) {
    for (uint32_t lower : {0x0000u, 0x7fffu, 0x8000u, 0x8001u}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<BFloat16> narrowed(values.size());
  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    row_kernels(context.simd).narrow_bf16(values.data(), std::ssize(values), narrowed.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(narrowed[i].bits, to_bfloat16(values[i]).bits) << values[i];
    }
  }
}

TEST(RowKernels, CosSinIsWithinAnUlpUpToFourMillionTokens) {
  constexpr int64_t kCount = 67;
  std::vector<float> inv_freq(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    inv_freq[i] = std::pow(10000.0F, -static_cast<float>(i) / kCount);
  }
  std::vector<float> cosines(kCount);
  std::vector<float> sines(kCount);
  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    for (int32_t p : {0, 1, 2, 355, 4095, 65537, 103993, 1000003, 4194303}) {
      const auto position = static_cast<float>(p);
      row_kernels(context.simd)
          .cos_sin(position, inv_freq.data(), kCount, cosines.data(), sines.data());
      for (int64_t i = 0; i < kCount; ++i) {
        const double angle = position * inv_freq[i];
        EXPECT_NEAR(cosines[i], std::cos(angle), 0x1p-23 * std::abs(std::cos(angle)))
            << "position " << p << ", frequency " << i;
        EXPECT_NEAR(sines[i], std::sin(angle), 0x1p-23 * std::abs(std::sin(angle)))
            << "position " << p << ", frequency " << i;
      }
    }
  }
}

TEST(RowKernels, SiluHoldsWhereTheExponentialOverflows) {
  const std::vector<float> gate = {-1e30F, -1000, -100, -88,
                                   -20,    -0.0F, 0,    1e-30F,
                                   20,     88,    1000, std::numeric_limits<float>::max()};
  const std::vector<float> up(gate.size(), 1.0F);
  std::vector<float> out(gate.size());
  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    row_kernels(context.simd).silu_mul_f32(gate.data(), up.data(), std::ssize(gate), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      // Beyond the clamp at 87 the result is gate * 2^-125 instead of less: off by 1e-37 of the
      // gate.
      const double exact = gate[i] / (1 + std::exp(-double{gate[i]}));
      EXPECT_NEAR(out[i], exact, 0x1p-22 * std::abs(exact) + 2e-38 * std::abs(gate[i])) << gate[i];
    }
  }
}

TEST(RowKernels, SiluHasFewUlpsOfErrorInItsRange) {
  std::vector<float> gate;
  for (int i = -2000; i <= 2000; ++i) gate.push_back(static_cast<float>(i) / 100);
  const std::vector<float> up(gate.size(), 1.0F);
  std::vector<float> out(gate.size());
  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    row_kernels(context.simd).silu_mul_f32(gate.data(), up.data(), std::ssize(gate), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      // Three roundings (exponential, sum, quotient) and the polynomial: under four half ulps.
      const double exact = gate[i] / (1 + std::exp(-double{gate[i]}));
      EXPECT_NEAR(out[i], exact, 0x1p-22 * std::abs(exact)) << gate[i];
    }
  }
}

TEST(RowKernels, NanStaysNan) {
  const std::vector<float> nan = {std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> one = {1};
  std::vector<float> out(1);
  for (const Context& context : test::contexts()) {
    const RowKernels& kernels = row_kernels(context.simd);
    kernels.silu_mul_f32(nan.data(), one.data(), 1, out.data());
    EXPECT_TRUE(std::isnan(out[0]));
    kernels.rms_norm_f32(nan.data(), one.data(), 1e-5F, 1, out.data());
    EXPECT_TRUE(std::isnan(out[0]));
  }
}

}  // namespace
}  // namespace millrace::kernels::cpu
