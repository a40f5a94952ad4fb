// SPDX-License-Identifier: Apache-2.0
#include "common/float8_array.h"

#include <array>

namespace millrace {

namespace {

template <typename Element>
void encode(const Element* x, int64_t count, float scale, Float8* codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = to_float8(to_float(x[i]) / scale);
}

constexpr float kLargestFloat16 = 65504;

float at_most(float x, float largest) {
  x = x > largest ? largest : x;
  return x < -largest ? -largest : x;
}

// Uses a table of all codes, which fits the first-level cache: faster than the arithmetic on
// baseline x86-64, for which this is compiled.
template <typename Element, typename Make>
void decode(const Float8* codes, int64_t count, Element* out, const Make& make) {
  std::array<Element, 256> numbers;
  for (size_t code = 0; code < numbers.size(); ++code) {
    numbers[code] = make(to_float(Float8{static_cast<uint8_t>(code)}));
  }
  for (int64_t i = 0; i < count; ++i) out[i] = numbers[codes[i].bits];
}

}  // namespace

void encode_float8(const void* x, DType dtype, int64_t count, float scale, Float8* codes) {
  switch (dtype) {
    case DType::kFloat32:
      return encode(static_cast<const float*>(x), count, scale, codes);
    case DType::kBFloat16:
      return encode(static_cast<const BFloat16*>(x), count, scale, codes);
    case DType::kFloat16:
      return encode(static_cast<const Float16*>(x), count, scale, codes);
  }
}

void decode_float8(const Float8* codes, int64_t count, float scale, DType dtype, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      return decode(codes, count, static_cast<float*>(out), [=](float x) { return x * scale; });
    case DType::kBFloat16:
      return decode(codes, count, static_cast<BFloat16*>(out),
                    [=](float x) { return to_bfloat16(x * scale); });
    case DType::kFloat16:
      return decode(codes, count, static_cast<Float16*>(out),
                    [=](float x) { return to_float16(at_most(x * scale, kLargestFloat16)); });
  }
}

}  // namespace millrace
