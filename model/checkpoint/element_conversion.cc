// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/element_conversion.h"

#include <bit>
#include <cstring>

#include "common/float8.h"

namespace millrace::model {

namespace {

// As to_float(Float16), but without branches, so that the compiler vectorises it. Exponent and
// mantissa moved into place are the number times 2^-112, subnormals included, and the product that
// undoes this is exact. Infinity and NaN then lack only the upper bits of their exponent.
float widen(Float16 x) {
  const uint32_t magnitude = uint32_t{x.bits & 0x7fffu} << 13;
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t is_special = magnitude >= 0x0f800000u;
  return std::bit_cast<float>(scaled | ((0u - is_special) & 0x7f800000u) | sign);
}
float widen(float x) {
  return x;
}
float widen(BFloat16 x) {
  return to_float(x);
}

void narrow(float x, float& out) {
  out = x;
}
void narrow(float x, BFloat16& out) {
  out = to_bfloat16(x);
}

void narrow(float x, Float16& out) {
  out = to_float16(x);
}

template <typename From, typename To>
void convert_run(const std::byte* source, int64_t count, To* destination) {
  for (int64_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, source + i * int64_t{sizeof(From)}, sizeof(From));
    narrow(widen(element), destination[i]);
  }
}

template <typename To>
void convert_float8_run(const std::byte* source, int64_t count, float scale, To* destination) {
  for (int64_t i = 0; i < count; ++i) {
    narrow(to_float(Float8{std::to_integer<uint8_t>(source[i])}) * scale, destination[i]);
  }
}

template <typename To>
void convert_run_from(DType source_type, const std::byte* source, int64_t count, To* destination) {
  switch (source_type) {
    case DType::kFloat32:
      return convert_run<float>(source, count, destination);
    case DType::kBFloat16:
      return convert_run<BFloat16>(source, count, destination);
    case DType::kFloat16:
      return convert_run<Float16>(source, count, destination);
  }
}

}  // namespace

void convert_elements(const std::byte* source, DType source_type, int64_t count, void* destination,
                      DType destination_type) {
  if (source_type == destination_type) {
    std::memcpy(destination, source, static_cast<std::size_t>(count * dtype_bytes(source_type)));
    return;
  }
  switch (destination_type) {
    case DType::kFloat32:
      return convert_run_from(source_type, source, count, static_cast<float*>(destination));
    case DType::kBFloat16:
      return convert_run_from(source_type, source, count, static_cast<BFloat16*>(destination));
    case DType::kFloat16:
      return convert_run_from(source_type, source, count, static_cast<Float16*>(destination));
  }
}

void convert_float8(const std::byte* source, int64_t count, float scale, void* destination,
                    DType destination_type) {
  switch (destination_type) {
    case DType::kFloat32:
      return convert_float8_run(source, count, scale, static_cast<float*>(destination));
    case DType::kBFloat16:
      return convert_float8_run(source, count, scale, static_cast<BFloat16*>(destination));
    case DType::kFloat16:
      return convert_float8_run(source, count, scale, static_cast<Float16*>(destination));
  }
}

}  // namespace millrace::model
