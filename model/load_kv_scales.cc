// SPDX-License-Identifier: Apache-2.0
#include "model/load_kv_scales.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "common/quote.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/element_conversion.h"
#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

namespace {

using Names = std::array<std::string_view, 8>;

// After model.layers.N.self_attn.
constexpr Names kKeyNames{"k_scale",
                          "attn.k_scale",
                          "k_proj.k_scale",
                          "qkv_proj.k_scale",
                          "qkqkv_proj.k_scale",
                          "k_cache.scale",
                          "k_proj.output_scale",
                          "kv_scale"};
constexpr Names kValueNames{"v_scale",
                            "attn.v_scale",
                            "v_proj.v_scale",
                            "qkv_proj.v_scale",
                            "qkqkv_proj.v_scale",
                            "v_cache.scale",
                            "v_proj.output_scale",
                            "kv_scale"};

// Scales of what is not stored: of Q, of attention's probabilities, and of what goes into or comes
// out of other layers.
constexpr std::array<std::string_view, 9> kOthers{
    "q_scale",        "attn.q_scale",        "q_proj.q_scale",      "qkv_proj.q_scale",
    "q.scale",        "q_proj.output_scale", "o_proj.output_scale", "prob_output_scale",
    "attn.prob_scale"};

// Parts of names of what might be a scale of K or V.
constexpr std::array<std::string_view, 3> kSuspicious{"scale", "zero_point", "amax"};

bool is_known(std::string_view name) {
  return std::ranges::find(kKeyNames, name) != kKeyNames.end() ||
         std::ranges::find(kValueNames, name) != kValueNames.end();
}

// Refuses what may be a scale of K or V under a name that is not known here: with a scale of 1
// instead, the cache would hold other numbers than the model's makers meant.
Result<void> refuse_unknown(const Checkpoint& checkpoint, const std::string& prefix) {
  for (const auto& full : checkpoint.names(prefix)) {
    const auto name = std::string_view(full).substr(prefix.size());
    const auto leaf = name.substr(name.rfind('.') == name.npos ? 0 : name.rfind('.') + 1);
    const bool suspicious = std::ranges::any_of(
        kSuspicious, [&](std::string_view part) { return name.find(part) != name.npos; });
    const bool of_weights = leaf.starts_with("weight") || leaf.starts_with("input");
    const bool of_others = std::ranges::find(kOthers, name) != kOthers.end();
    if (!suspicious || of_weights || of_others || is_known(name)) continue;
    return error(Errc::kUnsupported,
                 "tensor {} may be a scale of K or V, and is none that is read here; supported: {} "
                 "and {} after {}",
                 quote(std::string_view(full)), fmt::join(kKeyNames, ", "),
                 fmt::join(kValueNames, ", "), quote(std::string_view(prefix)));
  }
  return {};
}

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
                 quote(std::string_view(name)), scale);
  }
  return scales;
}

// Empty where the checkpoint has none.
Result<LayerScales> find_layer(const Checkpoint& checkpoint, const std::string& prefix,
                               int32_t num_heads, const Names& names) {
  LayerScales scales;
  std::string from;
  for (const auto& name : names) {
    const auto full = fmt::format("{}{}", prefix, name);
    if (!checkpoint.contains(full)) continue;
    MR_ASSIGN_OR_RETURN(auto found, read_scales(checkpoint, full, num_heads));
    if (!from.empty() && found != scales) {
      return error(Errc::kUnsupported, "scales {} and {} differ; supported: one of them",
                   quote(std::string_view(from)), quote(std::string_view(full)));
    }
    scales = std::move(found);
    from = full;
  }
  return scales;
}

}  // namespace

bool is_kv_scale_name(std::string_view name) {
  constexpr std::string_view kAttention = ".self_attn.";
  const auto at = name.find(kAttention);
  return at != name.npos && is_known(name.substr(at + kAttention.size()));
}

Result<KvScales> load_kv_scales(const std::string& model, const ModelConfig& config,
                                std::vector<std::string>* warnings) {
  if (is_synthetic_model(model)) return KvScales(static_cast<size_t>(config.num_layers));
  MR_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(model));
  std::vector<LayerScales> keys, values;
  int32_t num_assumed = 0;
  size_t num_heads = 1;  // that have scales of their own, in any layer
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto prefix = fmt::format("model.layers.{}.self_attn.", layer);
    MR_RETURN_IF_ERROR(refuse_unknown(checkpoint, prefix));
    MR_ASSIGN_OR_RETURN(auto k, find_layer(checkpoint, prefix, config.num_kv_heads, kKeyNames));
    MR_ASSIGN_OR_RETURN(auto v, find_layer(checkpoint, prefix, config.num_kv_heads, kValueNames));
    for (auto* scales : {&k, &v}) {
      if (!scales->empty()) continue;
      scales->push_back(1);
      ++num_assumed;
    }
    num_heads = std::max({num_heads, k.size(), v.size()});
    keys.push_back(std::move(k));
    values.push_back(std::move(v));
  }
  MR_RETURN_IF_ERROR(checkpoint.unchanged());
  if (num_assumed > 0 && warnings != nullptr) {
    warnings->push_back(fmt::format(
        "the checkpoint has no scales for {} of the {} K and V of all layers: they are 1, and "
        "numbers beyond 448 become 448",
        num_assumed, 2 * config.num_layers));
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
