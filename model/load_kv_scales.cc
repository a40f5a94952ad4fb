// SPDX-License-Identifier: Apache-2.0
#include "model/load_kv_scales.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "common/quoted.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/element_conversion.h"
#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

namespace {

using Names = std::array<std::string_view, 3>;

constexpr Names kKeyNames{"k_scale", "attn.k_scale", "k_proj.k_scale"};
constexpr Names kValueNames{"v_scale", "attn.v_scale", "v_proj.v_scale"};

// A layer's scales: one, or one for each kv head.
using LayerScales = std::vector<float>;

// A scalar may be stored with one dimension, and the scales of heads with more, in the shape used
// for multiplication.
Result<Tensor> find_scales(const Checkpoint& checkpoint, const std::string& name,
                           int32_t num_heads) {
  const std::array<std::vector<int64_t>, 5> shapes{
      {{}, {1}, {num_heads}, {num_heads, 1, 1}, {1, num_heads, 1, 1}}};
  Result<Tensor> found = error(Errc::kInternal, "no shape was tried");
  for (const auto& shape : shapes) {
    found = checkpoint.find(name, shape);
    if (found.ok() || found.error().code != Errc::kInvalidArgument) return found;
  }
  return error(Errc::kUnsupported,
               "{}; supported: one scale for K and one for V of a layer, or of each of its {} kv "
               "heads",
               found.error().message, num_heads);
}

Result<LayerScales> read_scales(const Checkpoint& checkpoint, const std::string& name,
                                int32_t num_heads) {
  MR_ASSIGN_OR_RETURN(const auto tensor, find_scales(checkpoint, name, num_heads));
  LayerScales scales(tensor.bytes.size() / static_cast<size_t>(dtype_bytes(tensor.dtype)));
  convert_elements(tensor.bytes.data(), tensor.dtype, std::ssize(scales),
                   reinterpret_cast<std::byte*>(scales.data()), DType::kFloat32);
  for (const float scale : scales) {
    if (is_kv_scale(scale)) continue;
    return error(Errc::kInvalidArgument, "scale {} is {}; must be from 2^-60 to 2^60",
                 quoted(std::string_view(name)), scale);
  }
  return scales;
}

Result<LayerScales> find_layer(const Checkpoint& checkpoint, int32_t layer, int32_t num_heads,
                               const Names& names) {
  for (const auto name : names) {
    const auto full = fmt::format("model.layers.{}.self_attn.{}", layer, name);
    if (checkpoint.contains(full)) return read_scales(checkpoint, full, num_heads);
  }
  return LayerScales{1};
}

}  // namespace

Result<KvScales> load_kv_scales(const std::string& model, const ModelConfig& config) {
  if (is_synthetic_model(model)) return KvScales(static_cast<size_t>(config.num_layers));
  MR_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(model));
  std::vector<LayerScales> keys, values;
  size_t num_heads = 1;  // that have scales of their own, in any layer
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    MR_ASSIGN_OR_RETURN(auto k, find_layer(checkpoint, layer, config.num_kv_heads, kKeyNames));
    MR_ASSIGN_OR_RETURN(auto v, find_layer(checkpoint, layer, config.num_kv_heads, kValueNames));
    num_heads = std::max({num_heads, k.size(), v.size()});
    keys.push_back(std::move(k));
    values.push_back(std::move(v));
  }
  std::vector<KvScale> scales;
  for (size_t layer = 0; layer < keys.size(); ++layer) {
    for (size_t head = 0; head < num_heads; ++head) {
      const auto of_head = [&](const LayerScales& own) {
        return own.size() == 1 ? own.front() : own[head];
      };
      scales.push_back({.k = of_head(keys[layer]), .v = of_head(values[layer])});
    }
  }
  return KvScales(std::move(scales), static_cast<int32_t>(num_heads));
}

}  // namespace millrace::model
