// SPDX-License-Identifier: Apache-2.0
#include "model/device_support.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

namespace {

// Builds the errors, all of which are about fields of one file.
class Refusals {
 public:
  Refusals(const std::string& model, const ModelWeights& weights, const kernels::DeviceInfo& device)
      : file_(is_synthetic_model(model) ? model : model + "/config.json"),
        weights_(weights),
        config_(weights.config),
        device_(device) {}

  Result<void> check() const {
    MR_RETURN_IF_ERROR(check_heads());
    MR_RETURN_IF_ERROR(check_widths());
    MR_RETURN_IF_ERROR(check_quantization());
    return check_expert_widths();
  }

 private:
  // `what`: about the value, where more needs to be said.
  template <typename Value>
  Error refusal(std::string_view field, const Value& value, std::string_view what,
                std::string_view supported) const {
    return error(Errc::kUnsupported, "{}: {} = {}{}{}: {} does not compute it; supported: {}",
                 file_, field, value, what.empty() ? "" : ", ", what, device_.name, supported);
  }

  // A rank's part of a width.
  std::string on_rank(int64_t own) const {
    if (weights_.tp.size == 1) return {};
    return fmt::format("{} on each of {} tensor-parallel ranks", own, weights_.tp.size);
  }

  Result<void> check_heads() const {
    if (device_.head_dim_from(config_.head_dim) != config_.head_dim) {
      return refusal(
          "head_dim", config_.head_dim, "",
          fmt::format("multiples of {} {}up to {}", device_.head_dim_step,
                      device_.doubling_head_dims ? "by powers of two " : "", device_.max_head_dim));
    }
    const int32_t turned = config_.num_turned();
    if (turned % device_.rotary_dim_step == 0) return {};
    return refusal("partial_rotary_factor", static_cast<double>(turned) / config_.head_dim,
                   fmt::format("{} of the {} elements of a head", turned, config_.head_dim),
                   fmt::format("multiples of {} elements", device_.rotary_dim_step));
  }

  Result<void> check_widths() const {
    const int32_t step = device_.width_step;
    if (config_.hidden_size % step != 0 || config_.hidden_size > device_.max_hidden_size) {
      return refusal("hidden_size", config_.hidden_size, "",
                     fmt::format("multiples of {} up to {}", step, device_.max_hidden_size));
    }
    if (weights_.shard.ffn_size % step == 0) return {};
    return refusal("intermediate_size", config_.ffn_size, on_rank(weights_.shard.ffn_size),
                   fmt::format("multiples of {}", step));
  }

  Result<void> check_quantization() const {
    if (weights_.quantization == Quantization::kNone) return {};
    if (!device_.float8_products || weights_.compute_dtype == DType::kFloat16) {
      return error(Errc::kUnsupported, "{} computes no products of 8-bit floats beside {}",
                   device_.name, dtype_name(weights_.compute_dtype));
    }
    const int64_t queries = int64_t{config_.num_query_heads} * config_.head_dim;
    const int64_t own_queries = int64_t{weights_.shard.num_query_heads} * config_.head_dim;
    const std::array<Width, 3> widths{
        {{"hidden_size", config_.hidden_size, config_.hidden_size},
         {"num_attention_heads times head_dim", queries, own_queries},
         {"intermediate_size", config_.ffn_size, weights_.shard.ffn_size}}};
    return check_widths_of("products of 8-bit floats", device_.float8_width_step, widths);
  }

  struct Width {
    std::string_view field;
    int64_t all, own;
  };

  template <typename Widths>
  Result<void> check_widths_of(std::string_view what, int32_t step, const Widths& widths) const {
    for (const auto& [field, all, own] : widths) {
      if (own % step == 0) continue;
      return refusal(field, all, on_rank(own), fmt::format("{} of multiples of {}", what, step));
    }
    return {};
  }

  // Checks a rank's part of the experts' width, for 16 or 8 bits.
  Result<void> check_expert_widths() const {
    const auto& experts = config_.experts;
    if (experts.num_experts == 0) return {};
    const bool float8 = weights_.quantization != Quantization::kNone &&
                        experts.names != ExpertsConfig::Names::kGptOss;
    const bool own_field = experts.names == ExpertsConfig::Names::kQwen;
    const std::string_view shared_field = own_field
                                              ? "shared_expert_intermediate_size"
                                              : "n_shared_experts times moe_intermediate_size";
    const std::array<Width, 2> widths{
        {{expert_width_field(experts), experts.ffn_size, weights_.shard.expert_ffn_size},
         {shared_field, experts.shared_ffn_size, weights_.shard.shared_ffn_size}}};
    return check_widths_of(fmt::format("experts of {} bits", float8 ? 8 : 16),
                           float8 ? device_.float8_width_step : device_.width_step, widths);
  }

  std::string file_;
  const ModelWeights& weights_;
  const ModelConfig& config_;
  const kernels::DeviceInfo& device_;
};

}  // namespace

Result<void> check_device(const std::string& model, const ModelWeights& weights,
                          const kernels::DeviceInfo& device) {
  return Refusals(model, weights, device).check();
}

}  // namespace millrace::model
