// SPDX-License-Identifier: Apache-2.0
#include "decode/next_queries.h"

#include "common/check.h"
#include "model/config/rope.h"

namespace millrace::decode {

Result<NextQueries> NextQueries::create(kernels::Device& device,
                                        const model::ModelWeights& weights) {
  MR_CHECK(weights.quantization == model::Quantization::kNone, "weights are quantised");
  NextQueries next(device, weights);
  const int64_t width = int64_t{weights.shard.num_query_heads} * weights.config.head_dim;
  MR_ASSIGN_OR_RETURN(next.normed_, device.allocate(weights.config.hidden_size *
                                                    dtype_bytes(weights.compute_dtype)));
  MR_ASSIGN_OR_RETURN(next.projected_, device.allocate(width * int64_t{sizeof(float)}));
  MR_ASSIGN_OR_RETURN(next.squares_, device.allocate(2 * int64_t{sizeof(float)}));
  MR_ASSIGN_OR_RETURN(next.q_, device.allocate(width * int64_t{sizeof(float)}));
  MR_ASSIGN_OR_RETURN(next.position_, device.allocate(int64_t{sizeof(int32_t)}));
  return next;
}

void NextQueries::begin_token(int32_t position, int64_t prompt_tokens) {
  if (host_position_ == position) return;
  host_position_ = position;
  prompt_tokens_ = prompt_tokens;
  device_->copy(position_.data(), &host_position_, position_.bytes());
}

const float* NextQueries::of_layer(int32_t layer, const float* hidden) {
  const auto& config = weights_->config;
  const auto& w = weights_->layers[static_cast<size_t>(layer)];
  const int64_t width = int64_t{weights_->shard.num_query_heads} * config.head_dim;
  const DType projected = device_->info().projection_dtype(weights_->compute_dtype);
  const auto normed =
      kernels::dense_matrix(normed_.data(), weights_->compute_dtype, 1, config.hidden_size);
  device_->rms_norm(
      {.x = hidden, .weight = w.attention_norm, .eps = config.rms_norm_eps, .out = normed});
  auto queries = w.qkv;  // those of the query heads come first
  queries.rows = width;
  device_->gemm({.a = normed,
                 .b = queries,
                 .bias = w.qkv_bias,
                 .c = kernels::dense_matrix(projected_.data(), projected, 1, width)});
  const bool joint_norm = config.joint_qk_norm;
  if (joint_norm) {
    device_->qkv_squares({.qkv = projected_.data(),
                          .qkv_dtype = projected,
                          .num_rows = 1,
                          .num_query_heads = weights_->shard.num_query_heads,
                          .num_kv_heads = 0,
                          .head_dim = config.head_dim,
                          .squares = squares_.as<float>()});
  }
  const auto rotation = weights_->rotation(layer, prompt_tokens_);
  device_->rope_qkv({.qkv = projected_.data(),
                     .qkv_dtype = projected,
                     .num_rows = 1,
                     .num_query_heads = weights_->shard.num_query_heads,
                     .num_kv_heads = 0,
                     .head_dim = config.head_dim,
                     .positions = position_.as<int32_t>(),
                     .rotary_dim = rotation.rotary_dim,
                     .interleaved = rotation.interleaved,
                     .inv_freq = rotation.inv_freq,
                     .turn_scale = rotation.turn_scale,
                     .q_norm = w.q_norm,
                     .k_norm = w.k_norm,
                     .squares = joint_norm ? squares_.as<float>() : nullptr,
                     .num_q_squares = width,
                     .norm_eps = config.rms_norm_eps,
                     .dtype = DType::kFloat32,
                     .q = q_.data(),
                     .kv_stride = 1});
  return q_.as<float>();
}

}  // namespace millrace::decode
