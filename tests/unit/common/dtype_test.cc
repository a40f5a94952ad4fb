// SPDX-License-Identifier: Apache-2.0
#include "common/dtype.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace {
namespace {

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  // 1 + 2^-8 lies half way between 1 and 1 + 2^-7: rounds to the even one.
  EXPECT_EQ(to_bfloat16(1.0f + 0.00390625f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(1.0f + 3 * 0.00390625f).bits, 0x3f82);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);  // infinity
}

TEST(DType, BFloat16KeepsNaNAndInfinity) {
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose payload is only in the bits that are cut off.
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(to_float(to_bfloat16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

TEST(DType, EveryBFloat16SurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(x))) continue;
    ASSERT_EQ(to_bfloat16(to_float(x)).bits, bits);
  }
}

TEST(DType, Float16RoundsToNearestEven) {
  EXPECT_EQ(to_float16(1.0f).bits, 0x3c00);
  // 1 + 2^-11 lies half way between 1 and 1 + 2^-10: rounds to the even one.
  EXPECT_EQ(to_float16(1.0f + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(to_float16(1.0f + 3 * 0x1p-11f).bits, 0x3c02);
  EXPECT_EQ(to_float16(std::nextafter(1.0f + 0x1p-11f, 2.0f)).bits, 0x3c01);
  EXPECT_EQ(to_float16(-0.0f).bits, 0x8000);
}

TEST(DType, Float16EndsAt65504AndStepsBy2ToTheMinus24AtZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_float16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-kInfinity).bits, 0xfc00);
  EXPECT_TRUE(std::isnan(to_float(to_float16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(to_float(to_float16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(to_float16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_float16(0x1p-25f).bits, 0x0000);  // half way: to the even one
  EXPECT_EQ(to_float16(3 * 0x1p-25f).bits, 0x0002);
  EXPECT_EQ(to_float16(std::nextafter(0x1p-14f, 0.0f)).bits, 0x0400);
}

TEST(DType, EveryFloat16SurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 x{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(x))) continue;
    ASSERT_EQ(to_float16(to_float(x)).bits, bits);
  }
}

TEST(DType, IsFoundByItsName) {
  EXPECT_EQ(find_dtype("float16"), DType::kFloat16);
  EXPECT_EQ(find_dtype("bfloat16"), DType::kBFloat16);
  EXPECT_EQ(find_dtype("float32"), DType::kFloat32);
  EXPECT_EQ(find_dtype("F16"), std::nullopt);
}

TEST(DType, ReadsFloat16) {
  EXPECT_EQ(to_float(Float16{0x3c00}), 1.0f);
  EXPECT_EQ(to_float(Float16{0xc000}), -2.0f);
  EXPECT_EQ(to_float(Float16{0x7bff}), 65504.0f);
  EXPECT_EQ(to_float(Float16{0x0001}), std::ldexp(1.0f, -24));  // smallest subnormal
  EXPECT_EQ(to_float(Float16{0x03ff}), std::ldexp(1023.0f, -24));
  EXPECT_EQ(to_float(Float16{0x0400}), std::ldexp(1.0f, -14));  // smallest normal
  EXPECT_EQ(to_float(Float16{0xfc00}), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(to_float(Float16{0x7e00})));
  EXPECT_TRUE(std::signbit(to_float(Float16{0x8000})));
}

}  // namespace
}  // namespace millrace
