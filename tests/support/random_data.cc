// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_data.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::test {
namespace {

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t random_bits(uint64_t seed, uint64_t index) {
  return mix(mix(seed) ^ index);
}

float random_uniform(uint64_t seed, uint64_t index) {
  return static_cast<float>(random_bits(seed, index) >> 40) * 0x1p-24F;
}

float random_normal(uint64_t seed, uint64_t index) {
  constexpr uint64_t kSummands = 12;
  float sum = -6.0F;
  for (uint64_t i = 0; i < kSummands; ++i) sum += random_uniform(seed, index * kSummands + i);
  return sum;
}

std::vector<float> random_normals(uint64_t seed, int64_t count, float scale) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale * random_normal(seed, i);
  return values;
}

std::vector<BFloat16> narrow(const std::vector<float>& values) {
  std::vector<BFloat16> narrowed(values.size());
  std::transform(values.begin(), values.end(), narrowed.begin(), to_bfloat16);
  return narrowed;
}

std::vector<float> widen(const std::vector<BFloat16>& values) {
  std::vector<float> widened(values.size());
  std::transform(values.begin(), values.end(), widened.begin(),
                 [](BFloat16 value) { return to_float(value); });
  return widened;
}

std::vector<Float16> narrow_to_float16(const std::vector<float>& values) {
  std::vector<Float16> narrowed(values.size());
  std::transform(values.begin(), values.end(), narrowed.begin(), to_float16);
  return narrowed;
}

std::vector<float> widen(const std::vector<Float16>& values) {
  std::vector<float> widened(values.size());
  std::transform(values.begin(), values.end(), widened.begin(),
                 [](Float16 value) { return to_float(value); });
  return widened;
}

std::vector<uint16_t> narrow_bits(const std::vector<float>& values, DType dtype) {
  MR_CHECK(dtype != DType::kFloat32, "float32 has no 16 bits");
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [=](float x) {
    return dtype == DType::kBFloat16 ? to_bfloat16(x).bits : to_float16(x).bits;
  });
  return bits;
}

std::vector<float> widen_bits(const std::vector<uint16_t>& bits, DType dtype) {
  MR_CHECK(dtype != DType::kFloat32, "float32 has no 16 bits");
  std::vector<float> widened(bits.size());
  std::transform(bits.begin(), bits.end(), widened.begin(), [=](uint16_t x) {
    return dtype == DType::kBFloat16 ? to_float(BFloat16{x}) : to_float(Float16{x});
  });
  return widened;
}

}  // namespace millrace::test
