// The scales of a KV cache in 8-bit floats (e4m3, common/float8.h): an element is its code times the
// scale of its layer, K and V apart, and x becomes the code nearest to x / scale. Plain values.
#pragma once

#include <string_view>
#include <vector>

namespace millrace {

// What manifests and configurations call elements of such a cache.
inline constexpr std::string_view kFloat8KvName = "float8_e4m3";

struct KvScale {
  float k = 1;
  float v = 1;

  bool operator==(const KvScale&) const = default;
};

// By layer of the model.
using KvScales = std::vector<KvScale>;

// Whether a number can be one: positive, and far from where x / scale or code * scale overflows.
constexpr bool is_kv_scale(float scale) {
  return scale >= 0x1p-60F && scale <= 0x1p60F;
}

}  // namespace millrace
