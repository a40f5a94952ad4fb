// SPDX-License-Identifier: Apache-2.0
// K and V to 8-bit floats and back on a GPU: the reference's bits, which are also the CPU's.
#include "kernels/api/float8_params.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/sm90/operations.h"
#include "tests/unit/kernels/kv_float8_case.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

using test::kFloat8Count, test::kFloat8Planes;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<uint8_t> as_integers(const std::vector<std::byte>& bytes) {
  std::vector<uint8_t> integers;
  for (const std::byte byte : bytes) integers.push_back(static_cast<uint8_t>(byte));
  return integers;
}

class KvFloat8Test : public GpuCase {};

TEST_F(KvFloat8Test, ElementsBecomeTheNearestCodes) {
  for (const DType dtype : kDTypes) {
    const auto x = test::float8_elements(dtype);
    const DeviceArray<uint8_t> device_x(as_integers(x));
    for (const float scale : test::kFloat8TestScales) {
      SCOPED_TRACE(fmt::format("{}, scale {}", dtype_name(dtype), scale));
      DeviceArray<uint8_t> codes(kFloat8Planes * kFloat8Count);
      run([&](Context& context) {
        float8_encode(test::encode_params(device_x.data(), dtype,
                                          reinterpret_cast<Float8*>(codes.data()), scale),
                      context);
      });
      EXPECT_EQ(codes.values(), test::reference_codes(x, dtype, scale));
      EXPECT_TRUE(codes.guards_intact());
    }
  }
}

TEST_F(KvFloat8Test, CodesBecomeTheNumbersTheyStandFor) {
  const auto codes = test::all_codes();
  std::vector<uint8_t> bits;
  for (const Float8 code : codes) bits.push_back(code.bits);
  const DeviceArray<uint8_t> device_codes(bits);
  for (const DType dtype : kDTypes) {
    for (const float scale : test::kFloat8TestScales) {
      SCOPED_TRACE(fmt::format("{}, scale {}", dtype_name(dtype), scale));
      const auto expected = as_integers(test::reference_numbers(codes, dtype, scale));
      DeviceArray<uint8_t> x(std::vector<uint8_t>(expected.size()));
      run([&](Context& context) {
        float8_decode(test::decode_params(reinterpret_cast<const Float8*>(device_codes.data()),
                                          x.data(), dtype, scale),
                      context);
      });
      EXPECT_TRUE(x.values() == expected);
      EXPECT_TRUE(x.guards_intact());
    }
  }
}

TEST_F(KvFloat8Test, PiecesOfPlanesBecomeTheNumbersTheyStandFor) {
  const auto codes = test::all_codes(kFloat8Planes * test::kPieceCodes);
  std::vector<uint8_t> bits;
  for (const Float8 code : codes) bits.push_back(code.bits);
  const DeviceArray<uint8_t> device_codes(bits);
  constexpr float kScale = 0.0213F;
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto expected = as_integers(test::reference_pieces(codes, dtype, kScale));
    DeviceArray<uint8_t> x(std::vector<uint8_t>(expected.size()));
    run([&](Context& context) {
      float8_decode_pieces(
          test::decode_pieces_params(reinterpret_cast<const Float8*>(device_codes.data()), x.data(),
                                     dtype, kScale),
          context);
    });
    EXPECT_TRUE(x.values() == expected);
    EXPECT_TRUE(x.guards_intact());
  }
}

TEST_F(KvFloat8Test, WhatIsKeptOfAPlaneIsWhatItsCodesStandFor) {
  constexpr int64_t kFirst = 16;  // after the NaN
  constexpr int64_t kCount = kFloat8Count - kFirst;
  constexpr float kScale = 0.0213F;
  const DeviceArray<uint8_t> x(as_integers(test::float8_elements(DType::kBFloat16)));
  DeviceArray<uint8_t> codes(kCount);
  DeviceArray<float> kept(kCount);
  run([&](Context& context) {
    float8_encode({.x = x.data() + kFirst * 2,
                   .dtype = DType::kBFloat16,
                   .codes = reinterpret_cast<Float8*>(codes.data()),
                   .count = kCount,
                   .scale = kScale,
                   .kept = kept.data()},
                  context);
  });
  const auto bits = codes.values();
  const auto values = kept.values();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], to_float(Float8{bits[i]}) * kScale) << i;
  }
  EXPECT_TRUE(codes.guards_intact() && kept.guards_intact());
}

}  // namespace
}  // namespace millrace::kernels::cuda
