// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/element_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

namespace millrace::model {
namespace {

std::vector<uint16_t> all_16_bit_patterns() {
  std::vector<uint16_t> patterns;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) patterns.push_back(static_cast<uint16_t>(bits));
  return patterns;
}

template <typename To, typename From>
std::vector<To> convert(const std::vector<From>& source, DType from, DType to) {
  std::vector<To> result(source.size());
  convert_elements(std::as_bytes(std::span(source)).data(), from,
                   static_cast<int64_t>(source.size()), result.data(), to);
  return result;
}

TEST(ElementConversion, WidensEveryFloat16AsTheScalarConversionDoes) {
  const auto patterns = all_16_bit_patterns();
  const auto floats = convert<float>(patterns, DType::kFloat16, DType::kFloat32);
  for (size_t i = 0; i < patterns.size(); ++i) {
    const float expected = to_float(Float16{patterns[i]});
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(floats[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

TEST(ElementConversion, WidensEveryBFloat16ByItsBits) {
  const auto patterns = all_16_bit_patterns();
  const auto floats = convert<float>(patterns, DType::kBFloat16, DType::kFloat32);
  for (size_t i = 0; i < patterns.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), uint32_t{patterns[i]} << 16);
  }
}

TEST(ElementConversion, RoundsFloat32ToTheNearestBFloat16AndTiesToEven) {
  const std::vector<uint32_t> bits{0x3f800000, 0x3f808000, 0x3f808001, 0x3f818000,
                                   0x3f817fff, 0x7f7fffff, 0xff800000, 0x80000000};
  const std::vector<uint16_t> expected{0x3f80, 0x3f80, 0x3f81, 0x3f82,
                                       0x3f81, 0x7f80, 0xff80, 0x8000};
  EXPECT_EQ(convert<uint16_t>(bits, DType::kFloat32, DType::kBFloat16), expected);
}

TEST(ElementConversion, RoundsFloat32AndBFloat16ToTheNearestFloat16) {
  // 1 + 2^-11 and 1 + 3 * 2^-11 lie half way between two; 2^-24 is the smallest; 65520 is too much.
  const std::vector<uint32_t> bits = {0x3f801000, 0x3f803000, 0x33800000, 0x477ff000, 0xbf800000};
  const std::vector<uint16_t> expected = {0x3c00, 0x3c02, 0x0001, 0x7c00, 0xbc00};
  EXPECT_EQ(convert<uint16_t>(bits, DType::kFloat32, DType::kFloat16), expected);
  const std::vector<uint16_t> bfloats = {0x3f80, 0x3f81, 0x3380, 0x4780, 0xbf80};
  const std::vector<uint16_t> halves = {0x3c00, 0x3c08, 0x0001, 0x7c00, 0xbc00};
  EXPECT_EQ(convert<uint16_t>(bfloats, DType::kBFloat16, DType::kFloat16), halves);
}

TEST(ElementConversion, RoundsFloat16ToBFloat16) {
  // 1 + 2^-10 rounds to 1; 1 + 2^-8 is a tie, to even; 65504 rounds up.
  const std::vector<uint16_t> halves{0x3c01, 0x3c04, 0x3c0c, 0x7bff};
  const std::vector<uint16_t> expected{0x3f80, 0x3f80, 0x3f82, 0x4780};
  EXPECT_EQ(convert<uint16_t>(halves, DType::kFloat16, DType::kBFloat16), expected);
}

TEST(ElementConversion, ReadsFromAnyAddress) {
  const std::vector<float> values{1.5f, -2.25f, 1e-30f};
  std::vector<std::byte> shifted(values.size() * sizeof(float) + 1);
  std::memcpy(shifted.data() + 1, values.data(), values.size() * sizeof(float));
  std::vector<float> copied(values.size());
  convert_elements(shifted.data() + 1, DType::kFloat32, 3, copied.data(), DType::kFloat32);
  EXPECT_EQ(copied, values);
  std::vector<uint16_t> narrowed(values.size());
  convert_elements(shifted.data() + 1, DType::kFloat32, 2, narrowed.data(), DType::kBFloat16);
  EXPECT_EQ(narrowed[0], 0x3fc0);
  EXPECT_EQ(narrowed[1], 0xc010);
}

}  // namespace
}  // namespace millrace::model
