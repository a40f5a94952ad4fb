#include "decode/device_prompt.h"

#include <cmath>

#include "common/check.h"

namespace millrace::decode {

Result<DevicePrompt> DevicePrompt::create(kernels::DevicePages& pages, kernels::Device* ahead,
                                          const model::ModelWeights& weights, int64_t num_tokens) {
  DevicePrompt prompt(pages, weights.config.num_layers, num_tokens);
  if (ahead != nullptr) {
    MR_ASSIGN_OR_RETURN(prompt.queries_, NextQueries::create(*ahead, weights));
  }
  return prompt;
}

void DevicePrompt::begin_layer(int32_t layer, const float* hidden, int32_t position) {
  pages_->begin_layer(layer);
  if (!queries_ || layer + 1 == num_layers_) return;
  if (layer == 0) queries_->begin_token(position, num_tokens_);
  pages_->foresee(layer + 1, queries_->of_layer(layer + 1, hidden));
}

Result<void> DevicePrompt::attend(const Step& step, Deadline) {
  MR_CHECK(step.first_token == 0, "layer {} has a window", step.layer);
  pages_->attend({.layer = step.layer,
                  .q = step.q,
                  .tail_lse = step.tail_lse,
                  .tail_out = step.tail_out,
                  .out = step.merged});
  return {};
}

kernels::DevicePagesShape device_pages_shape(const model::ModelWeights& weights,
                                             int64_t num_tokens) {
  return {.num_layers = weights.config.num_layers,
          .num_kv_heads = weights.shard.num_kv_heads,
          .num_query_heads = weights.shard.num_query_heads,
          .head_dim = weights.config.head_dim,
          .num_tokens = num_tokens,
          .dtype = weights.compute_dtype,
          .output = weights.compute_dtype,
          .scale = 1.0F / std::sqrt(static_cast<float>(weights.config.head_dim))};
}

}  // namespace millrace::decode
