// SPDX-License-Identifier: Apache-2.0
#include "model/fingerprint.h"

#include <fmt/ranges.h>

#include <span>

#include "common/checksum.h"
#include "model/config/rope.h"

namespace millrace::model {

namespace {

// Facts that earlier models did not have are included only for models that have them, so that older
// fingerprints do not change.
std::string facts_of(const ModelConfig& config) {
  std::string facts =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", config.architecture, config.num_layers,
                  config.hidden_size, config.num_query_heads, config.num_kv_heads, config.head_dim,
                  config.ffn_size, config.vocab_size, config.rope_theta, config.rms_norm_eps,
                  config.tied_embeddings, config.qkv_bias);
  if (const auto* scaling = std::get_if<Llama3RopeScaling>(&config.rope_scaling)) {
    facts += fmt::format(" {} {} {} {}", scaling->factor, scaling->low_freq_factor,
                         scaling->high_freq_factor, scaling->original_max_position_embeddings);
  } else if (config.rope_scaling.index() != 0) {
    facts += fmt::format(" rope {} {} {} {}", rope_turn_scale(config),
                         max_short_rope_tokens(config), fmt::join(rope_inv_freq(config), " "),
                         fmt::join(rope_inv_freq(config, /*long_prompt=*/true), " "));
  }
  if (config.rotary_dim != 0) facts += fmt::format(" rotary_dim {}", config.rotary_dim);
  if (!config.layer_windows.empty()) {
    facts += fmt::format(" windows {}", fmt::join(config.layer_windows, " "));
  }
  if (!config.local_rope_layers.empty()) {
    facts += fmt::format(" local rope {} {}", config.local_rope_theta,
                         fmt::join(config.local_rope_layers, " "));
  }
  if (!config.unrotated_layers.empty()) {
    facts += fmt::format(" unrotated {}", fmt::join(config.unrotated_layers, " "));
  }
  if (config.activation.limit != 0) {
    facts += fmt::format(" clamp {} {}", config.activation.alpha, config.activation.limit);
  }
  if (config.qk_norm) facts += " norms of heads";
  if (config.query_scale != 1) facts += fmt::format(" query scale {}", config.query_scale);
  if (config.float8) {
    facts += fmt::format(" float8 {} {}", config.float8->block_rows, config.float8->block_cols);
  }
  if (const auto& experts = config.experts; experts.num_experts > 0) {
    facts += fmt::format(" experts {} {} {} {} {} dense {}", experts.num_experts,
                         experts.experts_per_token, experts.ffn_size, experts.weights_sum_to_one,
                         experts.shared_ffn_size, fmt::join(experts.dense_layers, " "));
    if (experts.by_sigmoids) facts += fmt::format(" sigmoids {}", experts.weight_factor);
  }
  return facts;
}

}  // namespace

std::string fingerprint(const ModelConfig& config, const TensorSource& tensors, int num_threads) {
  const std::string facts =
      fmt::format("{} {:016x}", facts_of(config), tensors.fingerprint(num_threads));
  return fmt::format("{:016x}", checksum(std::as_bytes(std::span(facts))));
}

}  // namespace millrace::model
