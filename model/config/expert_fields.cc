// SPDX-License-Identifier: Apache-2.0
#include "model/config/expert_fields.h"

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <string_view>

#include "model/config/config_limits.h"

namespace millrace::model {

namespace {

using Experts = Family::Experts;

// Of the possible names of the field, the one that this file uses.
std::string_view count_field(const JsonFields& fields) {
  if (fields.find("n_routed_experts") != nullptr) return "n_routed_experts";
  return fields.find("num_experts") == nullptr && fields.find("num_local_experts") != nullptr
             ? "num_local_experts"
             : "num_experts";
}

bool is_number(const boost::json::value& value, double number) {
  return value.is_number() && value.to_number<double>() == number;
}

// A field that must have one value, or be absent.
Result<void> require(const JsonFields& fields, std::string_view name, std::string_view value) {
  MR_ASSIGN_OR_RETURN(const auto found, fields.string_or(name, value));
  if (found == value) return {};
  return fields.unsupported(name, fmt::format("\"{}\"", value));
}

// Refuses fields of DeepSeek and related models unless they have the values with which they do
// nothing. GLM-4 has some of them too; there they are implemented.
Result<void> refuse_variants(const JsonFields& fields, const Family& family) {
  struct Variant {
    std::string_view field;
    double harmless;
    bool glm4 = false;
  };
  constexpr std::array<Variant, 7> kVariants{{{"n_routed_experts", 0, true},
                                              {"n_shared_experts", 0, true},
                                              {"n_group", 1},
                                              {"topk_group", 1},
                                              {"routed_scaling_factor", 1, true},
                                              {"first_k_dense_replace", 0, true},
                                              {"moe_layer_freq", 1}}};
  for (const auto& [field, harmless, glm4] : kVariants) {
    if (glm4 && family.experts == Experts::kGlm4) continue;
    if (field == "first_k_dense_replace" && family.experts == Experts::kHy3) continue;
    const auto* value = fields.find(field);
    if (value != nullptr && !is_number(*value, harmless)) {
      return fields.unsupported(field, fmt::format("{}, or no such field", harmless));
    }
  }
  const bool by_sigmoids = family.experts == Experts::kMiniMax;
  MR_RETURN_IF_ERROR(require(fields, "scoring_func", by_sigmoids ? "sigmoid" : "softmax"));
  MR_RETURN_IF_ERROR(require(fields, "topk_method", "greedy"));
  const auto* shared = fields.find("shared_expert_intermediate_size");
  if (!family.shared_expert && shared != nullptr && !is_number(*shared, 0)) {
    return fields.unsupported("shared_expert_intermediate_size",
                              fmt::format("0 in a {}", family.architecture));
  }
  return {};
}

Result<void> refuse_experts(const JsonFields& fields, const Family& family) {
  const auto field = count_field(fields);
  const auto* count = fields.find(field);
  if (count == nullptr || is_number(*count, 0)) return {};
  return fields.unsupported(field, fmt::format("0 in a {}", family.architecture));
}

// Layer l has a mixture if decoder_sparse_step divides l + 1 and mlp_only_layers does not name it.
Result<void> read_layers(const JsonFields& fields, ModelConfig& config) {
  auto& dense = config.experts.dense_layers;
  MR_ASSIGN_OR_RETURN(const int32_t step, fields.count_or("decoder_sparse_step", 1, kMaxLayers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % step != 0) dense.insert(layer);
  }
  const auto* named = fields.find("mlp_only_layers");
  if (named == nullptr) return {};
  const auto expected = fmt::format("a list of layers from 0 to {}", config.num_layers - 1);
  if (!named->is_array()) return fields.invalid("mlp_only_layers", expected);
  for (const auto& value : named->get_array()) {
    const auto* layer = value.if_int64();
    if (layer == nullptr || *layer < 0 || *layer >= config.num_layers) {
      return fields.invalid("mlp_only_layers", expected);
    }
    dense.insert(static_cast<int32_t>(*layer));
  }
  return {};
}

// Reads a shared expert, whose width is that of so many experts.
Result<void> read_shared(const JsonFields& fields, std::string_view field, ModelConfig& config) {
  auto& experts = config.experts;
  MR_ASSIGN_OR_RETURN(const auto num_shared, fields.count_or(field, 1, kMaxExperts));
  const int64_t ffn_size = int64_t{num_shared} * experts.ffn_size;
  if (ffn_size > kMaxFfnSize) {
    return fields.invalid(
        field, fmt::format("at most {} of {}", kMaxFfnSize / experts.ffn_size, experts.ffn_size));
  }
  experts.shared_ffn_size = static_cast<int32_t>(ffn_size);
  return {};
}

Result<void> read_first_dense(const JsonFields& fields, ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const auto count,
                      fields.number_or("first_k_dense_replace", 1, 0, config.num_layers));
  for (int32_t layer = 0; layer < static_cast<int32_t>(count); ++layer) {
    config.experts.dense_layers.insert(layer);
  }
  return {};
}

// What GLM-4's mixtures have in addition to Qwen's fields: sigmoids, a factor, a shared expert as
// wide as several experts, and MLPs in the first layers. The numbers are those that Transformers
// assumes.
Result<void> read_glm4(const JsonFields& fields, ModelConfig& config) {
  auto& experts = config.experts;
  experts.names = ExpertsConfig::Names::kGlm4;
  experts.by_sigmoids = true;
  MR_ASSIGN_OR_RETURN(experts.weights_sum_to_one, fields.boolean_or("norm_topk_prob", true));
  MR_ASSIGN_OR_RETURN(experts.weight_factor,
                      fields.number_or("routed_scaling_factor", 1, 1e-6, 1e6));
  MR_RETURN_IF_ERROR(read_shared(fields, "n_shared_experts", config));
  return read_first_dense(fields, config);
}

// Hy3's: as GLM-4's, with other names, and with layers listed one by one.
Result<void> read_hy3(const JsonFields& fields, ModelConfig& config) {
  auto& experts = config.experts;
  experts.names = ExpertsConfig::Names::kHy3;
  experts.by_sigmoids = true;
  experts.weights_sum_to_one = true;
  for (const char* always :
       {"qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"}) {
    MR_ASSIGN_OR_RETURN(const auto is_so, fields.boolean_or(always, true));
    if (!is_so) return fields.unsupported(always, "true");
  }
  MR_ASSIGN_OR_RETURN(experts.weight_factor,
                      fields.number_or("router_scaling_factor", 2.826, 1e-6, 1e6));
  MR_RETURN_IF_ERROR(read_shared(fields, "num_shared_experts", config));
  const auto* types = fields.find("mlp_layer_types");
  if (types == nullptr) return read_first_dense(fields, config);
  const auto expected =
      fmt::format("\"dense\" or \"sparse\" for each of {} layers", config.num_layers);
  if (!types->is_array() || types->get_array().size() != static_cast<size_t>(config.num_layers)) {
    return fields.invalid("mlp_layer_types", expected);
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto& type = types->get_array()[static_cast<size_t>(layer)];
    if (type != "dense" && type != "sparse") return fields.unsupported("mlp_layer_types", expected);
    if (type == "dense") experts.dense_layers.insert(layer);
  }
  return {};
}

// MiniMax's: Mixtral's with sigmoids; shared_intermediate_size must be 0 or absent.
Result<void> read_minimax(const JsonFields& fields, ModelConfig& config) {
  auto& experts = config.experts;
  experts.names = ExpertsConfig::Names::kMiniMax;
  experts.ffn_size = config.ffn_size;
  experts.by_sigmoids = true;
  experts.weights_sum_to_one = true;
  MR_ASSIGN_OR_RETURN(const auto corrected, fields.boolean_or("use_routing_bias", true));
  if (!corrected) return fields.unsupported("use_routing_bias", "true");
  const auto* shared = fields.find("shared_intermediate_size");
  if (shared == nullptr || is_number(*shared, 0)) return {};
  return fields.unsupported("shared_intermediate_size", "0");
}

}  // namespace

Result<void> read_experts(const JsonFields& fields, const Family& family, ModelConfig& config) {
  MR_RETURN_IF_ERROR(refuse_variants(fields, family));
  if (family.experts == Experts::kNone) return refuse_experts(fields, family);
  auto& experts = config.experts;
  const auto& assumed = family.assumed;
  MR_ASSIGN_OR_RETURN(experts.num_experts,
                      fields.count_or(count_field(fields), assumed.experts, kMaxExperts));
  MR_ASSIGN_OR_RETURN(
      experts.experts_per_token,
      fields.count_or("num_experts_per_tok", assumed.experts_per_token, kMaxExperts));
  if (experts.experts_per_token > experts.num_experts) {
    return fields.invalid("num_experts_per_tok",
                          fmt::format("at most {} ({})", count_field(fields), experts.num_experts));
  }
  if (family.experts == Experts::kMixtral) {
    experts.names = ExpertsConfig::Names::kMixtral;
    experts.ffn_size = config.ffn_size;
    experts.weights_sum_to_one = true;
    return {};
  }
  if (family.experts == Experts::kGptOss) {
    experts.names = ExpertsConfig::Names::kGptOss;
    experts.ffn_size = config.ffn_size;
    experts.weights_sum_to_one = true;
    return {};
  }
  if (family.experts == Experts::kMiniMax) return read_minimax(fields, config);
  MR_ASSIGN_OR_RETURN(experts.ffn_size,
                      fields.count_or("moe_intermediate_size", assumed.expert_ffn, kMaxFfnSize));
  if (family.experts == Experts::kGlm4) return read_glm4(fields, config);
  if (family.experts == Experts::kHy3) return read_hy3(fields, config);
  MR_ASSIGN_OR_RETURN(experts.weights_sum_to_one, fields.boolean_or("norm_topk_prob", false));
  if (family.shared_expert) {
    MR_ASSIGN_OR_RETURN(experts.shared_ffn_size, fields.count_or("shared_expert_intermediate_size",
                                                                 assumed.shared_ffn, kMaxFfnSize));
  }
  return read_layers(fields, config);
}

}  // namespace millrace::model
