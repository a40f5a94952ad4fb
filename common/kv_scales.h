// SPDX-License-Identifier: Apache-2.0
// The scales of a KV cache in 8-bit floats (e4m3, common/float8.h). An element is its code times
// the scale of its layer, or of its layer and kv head; K and V have separate scales. x becomes the
// code nearest to x / scale. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

// The name of this element type in manifests and configurations.
inline constexpr std::string_view kFloat8KvName = "float8_e4m3";

struct KvScale {
  float k = 1;
  float v = 1;

  bool operator==(const KvScale&) const = default;
};

class KvScales {
 public:
  KvScales() = default;
  // One scale for each layer of the model.
  KvScales(std::initializer_list<KvScale> layers) : scales_(layers) {}
  explicit KvScales(size_t num_layers, KvScale scale = {}) : scales_(num_layers, scale) {}
  // [layers, num_heads] of the model; num_heads 1: one scale for each layer.
  KvScales(std::vector<KvScale> scales, int32_t num_heads)
      : scales_(std::move(scales)), num_heads_(num_heads) {}

  bool empty() const { return scales_.empty(); }
  // Whether kv heads of a layer have scales of their own.
  bool by_head() const { return num_heads_ > 1; }
  // Heads count in the model.
  const KvScale& of(int32_t layer, int32_t kv_head) const { return scales_[index(layer, kv_head)]; }
  KvScale& of(int32_t layer, int32_t kv_head) { return scales_[index(layer, kv_head)]; }
  // [layers] or [layers, kv heads].
  const std::vector<KvScale>& all() const { return scales_; }

  bool operator==(const KvScales&) const = default;

 private:
  size_t index(int32_t layer, int32_t kv_head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(num_heads_) +
           static_cast<size_t>(by_head() ? kv_head : 0);
  }

  std::vector<KvScale> scales_;
  int32_t num_heads_ = 1;
};

// Whether a number can be a scale: positive, and far from where x / scale or code * scale
// overflows.
constexpr bool is_kv_scale(float scale) {
  return scale >= 0x1p-60F && scale <= 0x1p60F;
}

}  // namespace millrace
