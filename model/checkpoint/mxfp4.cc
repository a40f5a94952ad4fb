// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/checkpoint/element_conversion.h"

namespace millrace::model {

namespace {

constexpr std::array<float, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// For one scale, the two bfloat16 that each byte stands for: one load and one store for two
// elements.
using Pairs = std::array<std::array<BFloat16, 2>, 256>;

float element(unsigned code, int exponent) {
  const float magnitude = std::ldexp(kMagnitudes[code & 7], exponent);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

const std::vector<Pairs>& pairs_by_scale() {
  static const std::vector<Pairs> kPairs = [] {
    std::vector<Pairs> all(256);
    for (int scale = 0; scale < 256; ++scale) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        auto& pair = all[static_cast<size_t>(scale)][byte];
        pair = {to_bfloat16(element(byte & 15, scale - 127)),
                to_bfloat16(element(byte >> 4, scale - 127))};
      }
    }
    return all;
  }();
  return kPairs;
}

void convert_block(const std::byte* block, const Pairs& pairs, BFloat16* out) {
  for (int64_t i = 0; i < kMxfp4BlockBytes; ++i) {
    std::memcpy(out + 2 * i, pairs[std::to_integer<size_t>(block[i])].data(), sizeof pairs[0]);
  }
}

void convert_to_bfloat16(const std::byte* blocks, const std::byte* scales, int64_t first,
                         int64_t count, BFloat16* out) {
  const auto& pairs = pairs_by_scale();
  for (int64_t at = first; at < first + count;) {
    const int64_t block = at / kMxfp4Block, within = at % kMxfp4Block;
    const int64_t length = std::min(kMxfp4Block - within, first + count - at);
    const auto& values = pairs[std::to_integer<size_t>(scales[block])];
    const std::byte* bytes = blocks + block * kMxfp4BlockBytes;
    if (length == kMxfp4Block) {
      convert_block(bytes, values, out);
    } else {
      std::array<BFloat16, kMxfp4Block> whole;
      convert_block(bytes, values, whole.data());
      std::copy_n(whole.begin() + within, length, out);
    }
    out += length;
    at += length;
  }
}

}  // namespace

void convert_mxfp4(const std::byte* blocks, const std::byte* scales, int64_t first, int64_t count,
                   void* destination, DType destination_type) {
  if (destination_type == DType::kBFloat16) {
    return convert_to_bfloat16(blocks, scales, first, count, static_cast<BFloat16*>(destination));
  }
  std::vector<BFloat16> values(static_cast<size_t>(count));
  convert_to_bfloat16(blocks, scales, first, count, values.data());
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kBFloat16, count,
                   destination, destination_type);
}

}  // namespace millrace::model
