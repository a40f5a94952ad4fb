// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/float8_params.h"

#include <gtest/gtest.h>

#include "common/float8_array.h"
#include "kernels/cpu/float8/kv_float8.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/kv_float8_case.h"

namespace millrace::kernels {
namespace {

using test::kFloat8Count, test::kFloat8Planes, test::kFloat8Stride;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<uint8_t> bits_of(const std::vector<Float8>& codes) {
  std::vector<uint8_t> bits;
  for (const Float8 code : codes) bits.push_back(code.bits);
  return bits;
}

TEST(KvFloat8, ElementsBecomeTheNearestCodesOnEveryInstructionSetAndOnTheHost) {
  for (const DType dtype : kDTypes) {
    const auto x = test::float8_elements(dtype);
    for (const float scale : test::kFloat8TestScales) {
      SCOPED_TRACE(fmt::format("{}, scale {}", dtype_name(dtype), scale));
      const auto expected = test::reference_codes(x, dtype, scale);
      for (const auto& context : test::contexts()) {
        std::vector<Float8> codes(expected.size());
        cpu::float8_encode(test::encode_params(x.data(), dtype, codes.data(), scale), context);
        EXPECT_EQ(bits_of(codes), expected) << test::to_string(context);
      }
      std::vector<Float8> codes(expected.size());
      for (int64_t plane = 0; plane < kFloat8Planes; ++plane) {
        encode_float8(x.data() + plane * kFloat8Stride * dtype_bytes(dtype), dtype, kFloat8Count,
                      scale, codes.data() + plane * kFloat8Count);
      }
      EXPECT_EQ(bits_of(codes), expected);
    }
  }
}

TEST(KvFloat8, CodesBecomeTheNumbersTheyStandForAndFloat16StaysFinite) {
  const auto codes = test::all_codes();
  for (const DType dtype : kDTypes) {
    for (const float scale : test::kFloat8TestScales) {
      SCOPED_TRACE(fmt::format("{}, scale {}", dtype_name(dtype), scale));
      const auto expected = test::reference_numbers(codes, dtype, scale);
      for (const auto& context : test::contexts()) {
        std::vector<std::byte> x(expected.size());
        cpu::float8_decode(test::decode_params(codes.data(), x.data(), dtype, scale), context);
        EXPECT_TRUE(x == expected) << test::to_string(context);
      }
      std::vector<std::byte> x(expected.size());
      for (int64_t plane = 0; plane < kFloat8Planes; ++plane) {
        decode_float8(codes.data() + plane * kFloat8Count, kFloat8Count, scale, dtype,
                      x.data() + plane * kFloat8Stride * dtype_bytes(dtype));
      }
      EXPECT_TRUE(x == expected);
    }
  }
}

TEST(KvFloat8, WhatIsKeptOfAPlaneIsWhatItsCodesStandFor) {
  const auto x = test::float8_elements(DType::kBFloat16);
  constexpr int64_t kFirst = 16;  // after the NaN
  constexpr int64_t kCount = kFloat8Count - kFirst;
  constexpr float kScale = 0.0213F;
  for (const auto& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    std::vector<Float8> codes(kCount);
    std::vector<float> kept(kCount);
    cpu::float8_encode({.x = x.data() + kFirst * 2,
                        .dtype = DType::kBFloat16,
                        .codes = codes.data(),
                        .count = kCount,
                        .scale = kScale,
                        .kept = kept.data()},
                       context);
    for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i], to_float(codes[i]) * kScale) << i;
  }
}

}  // namespace
}  // namespace millrace::kernels
