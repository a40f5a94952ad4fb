#include "model/fingerprint.h"

#include <span>

#include "common/checksum.h"

namespace millrace::model {

namespace {

std::string facts_of(const ModelConfig& config) {
  std::string facts =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", config.architecture, config.num_layers,
                  config.hidden_size, config.num_query_heads, config.num_kv_heads, config.head_dim,
                  config.ffn_size, config.vocab_size, config.rope_theta, config.rms_norm_eps,
                  config.tied_embeddings, config.qkv_bias);
  if (const auto& scaling = config.rope_scaling) {
    facts += fmt::format(" {} {} {} {}", scaling->factor, scaling->low_freq_factor,
                         scaling->high_freq_factor, scaling->original_max_position_embeddings);
  }
  return facts;
}

}  // namespace

std::string fingerprint(const ModelConfig& config, const TensorSource& tensors) {
  const std::string facts = fmt::format("{} {:016x}", facts_of(config), tensors.fingerprint());
  return fmt::format("{:016x}", checksum(std::as_bytes(std::span(facts))));
}

}  // namespace millrace::model
