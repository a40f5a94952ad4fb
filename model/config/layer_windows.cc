// SPDX-License-Identifier: Apache-2.0
#include "model/config/layer_windows.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <optional>

#include "model/config/config_limits.h"

namespace millrace::model {

namespace {

using Windows = Family::Windows;

constexpr int32_t kDefaultMaxWindowLayers = 28;  // what Transformers assumes
constexpr std::array kPatternFields = {"sliding_window_pattern", "_sliding_window_pattern"};
constexpr std::string_view kLayerTypes =
    "\"full_attention\" or \"sliding_attention\" for each layer";

// Whether each layer has a window; none where the file does not say.
Result<std::optional<std::vector<bool>>> read_layer_types(const JsonFields& fields,
                                                          const ModelConfig& config) {
  const auto* value = fields.find("layer_types");
  if (value == nullptr) return std::optional<std::vector<bool>>();
  const auto* types = value->if_array();
  if (types == nullptr || types->size() != static_cast<size_t>(config.num_layers)) {
    return fields.invalid("layer_types", fmt::format("a list of {} layers", config.num_layers));
  }
  std::vector<bool> slides;
  for (const auto& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return fields.unsupported("layer_types", kLayerTypes);
    }
    slides.push_back(type == "sliding_attention");
  }
  return std::optional(std::move(slides));
}

// Whether there are windows only where use_sliding_window says so.
bool is_qwen(Windows windows) {
  return windows == Windows::kQwen || windows == Windows::kQwen2Moe ||
         windows == Windows::kQwen3Moe;
}

// The model's window; 0: none.
Result<int32_t> read_window(const JsonFields& fields, const Family& family) {
  const Windows windows = family.windows;
  if (windows == Windows::kNone) return 0;
  if (is_qwen(windows)) {
    MR_ASSIGN_OR_RETURN(const auto used, fields.boolean_or("use_sliding_window", false));
    if (!used) return 0;
  }
  const bool has_field = fields.has("sliding_window");
  const bool is_null = !fields.find("sliding_window") && has_field;
  if (is_null || (windows == Windows::kField && !has_field)) return 0;
  return fields.count_or("sliding_window", family.sliding_window, kMaxPositions);
}

// Which layers have a window where layer_types does not say.
Result<std::vector<bool>> default_layers(const JsonFields& fields, const Family& family,
                                         const ModelConfig& config) {
  std::vector<bool> slides(static_cast<size_t>(config.num_layers), true);
  if (family.windows == Windows::kPattern) {
    int32_t pattern = family.window_pattern;
    for (const char* field : kPatternFields) {
      MR_ASSIGN_OR_RETURN(pattern, fields.count_or(field, pattern, kMaxLayers));
    }
    for (size_t layer = 0; layer < slides.size(); ++layer) {
      slides[layer] = (layer + 1) % static_cast<size_t>(pattern) != 0;
    }
    return slides;
  }
  const bool alternates = family.windows == Windows::kQwen2Moe;
  if (family.windows != Windows::kQwen && !alternates) return slides;
  int32_t full = kDefaultMaxWindowLayers;  // before which layers have no window, or some do
  const auto* zero = fields.find("max_window_layers");
  if (zero != nullptr && *zero == 0) {
    full = 0;
  } else {
    MR_ASSIGN_OR_RETURN(full, fields.count_or("max_window_layers", full, kMaxPositions));
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    slides[static_cast<size_t>(layer)] =
        alternates ? layer % 2 == 0 && layer < full : layer >= full;
  }
  return slides;
}

}  // namespace

Result<void> read_layer_windows(const JsonFields& fields, const Family& family,
                                ModelConfig& config) {
  for (const char* pattern : kPatternFields) {
    if (family.windows == Windows::kPattern || !fields.find(pattern)) continue;
    return fields.unsupported(pattern, "null, and layer_types");
  }
  MR_ASSIGN_OR_RETURN(const int32_t window, read_window(fields, family));
  MR_ASSIGN_OR_RETURN(const auto types, read_layer_types(fields, config));
  MR_ASSIGN_OR_RETURN(auto slides, default_layers(fields, family, config));
  const bool by_layer = family.windows == Windows::kQwen || family.windows == Windows::kQwen2Moe ||
                        family.windows == Windows::kByLayer || family.windows == Windows::kPattern;
  if (types) {
    const bool all_slide = std::ranges::find(*types, false) == types->end();
    const bool none_slides = std::ranges::find(*types, true) == types->end();
    if (window == 0 && !none_slides) {
      return fields.unsupported("layer_types",
                                "\"full_attention\" in each layer of a model without "
                                "sliding_window");
    }
    if (window != 0 && !by_layer && !all_slide) {
      return fields.unsupported(
          "layer_types",
          fmt::format("\"sliding_attention\" in each layer of {} with sliding_window",
                      family.architecture));
    }
    if (by_layer) slides = *types;
  }
  const bool any_slides = std::ranges::find(slides, true) != slides.end();
  if (window == 0) {
    return family.windows == Windows::kPattern && any_slides
               ? fields.unsupported("sliding_window", "a number of tokens")
               : Result<void>();
  }
  for (int32_t layer = 0; layer < config.num_layers && family.local_rope_theta != 0; ++layer) {
    if (slides[static_cast<size_t>(layer)]) config.local_rope_layers.insert(layer);
  }
  if (!any_slides || window >= config.max_position_embeddings) return {};
  for (const bool sliding : slides) config.layer_windows.push_back(sliding ? window : 0);
  return {};
}

}  // namespace millrace::model
