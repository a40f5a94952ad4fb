// SPDX-License-Identifier: Apache-2.0
#include "common/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/random_data.h"

namespace millrace {
namespace {

// By the format's table: sign, 4 bits of exponent with bias 7, 3 of mantissa.
float by_table(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

Float8 code(int bits) {
  return {static_cast<uint8_t>(bits)};
}

TEST(Float8, EveryCodeIsTheNumberOfTheTable) {
  for (int bits = 0; bits < 256; ++bits) {
    const float expected = by_table(bits), value = to_float(code(bits));
    EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << bits;
    EXPECT_EQ(std::signbit(value), (bits & 0x80) != 0) << bits;
    if (std::isnan(expected)) continue;
    EXPECT_EQ(to_float8(expected).bits, bits);
  }
}

TEST(Float8, HalvesGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = by_table(bits), high = by_table(bits + 1);
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_float8(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(to_float8(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(to_float8(std::nextafter(middle, high)).bits, bits + 1);
    EXPECT_EQ(to_float8(-std::nextafter(middle, high)).bits, (bits + 1) | 0x80);
  }
}

TEST(Float8, WhatIsTooLargeBecomesTheLargestAndNoNumberStaysNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0F, 449.0F, 464.0F, 1e30F, infinity}) {
    EXPECT_EQ(to_float8(x).bits, 0x7e) << x;
    EXPECT_EQ(to_float8(-x).bits, 0xfe) << x;
  }
  EXPECT_EQ(to_float8(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0x7f);
  EXPECT_EQ(to_float8(1e-30F).bits, 0);
  EXPECT_EQ(to_float8(-0.0F).bits, 0x80);
}

TEST(Float8, RandomNumbersGoToTheNearestCode) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const float x = test::random_normal(1, i) * std::ldexp(1.0F, static_cast<int>(i % 20) - 12);
    const float error = std::abs(to_float(to_float8(x)) - x);
    for (int bits = 0; bits < 256; ++bits) {
      if ((bits & 0x7f) == 0x7f) continue;
      ASSERT_LE(error, std::abs(by_table(bits) - x)) << x;
    }
  }
}

TEST(Float8, TheLargestOfARowBecomesTheLargestCode) {
  for (const float largest : {1.0F, 0.3F, 448.0F, 1e30F, 1e-25F, 0x1p-100F}) {
    const auto [scale, inverse] = float8_scale(largest);
    EXPECT_EQ(to_float8(largest * inverse).bits, 0x7e) << largest;
    EXPECT_NEAR(to_float(code(0x7e)) * scale, largest, 1e-6F * largest);
  }
  // If all numbers are zero, or so small that their inverse overflows, the result is about as
  // small.
  for (const float largest : {0.0F, 1e-40F, 0x1p-120F}) {
    const auto [scale, inverse] = float8_scale(largest);
    EXPECT_TRUE(std::isfinite(inverse));
    EXPECT_NEAR(to_float(to_float8(largest * inverse)) * scale, largest, 0x1p-115F) << largest;
  }
}

}  // namespace
}  // namespace millrace
