#include "common/dtype.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace {
namespace {

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  // 1 + 2^-8 lies half way between 1 and 1 + 2^-7: to the even one.
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
