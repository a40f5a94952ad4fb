// SPDX-License-Identifier: Apache-2.0
#include "model/layer_forward.h"

#include <algorithm>
#include <cstddef>

#include "model/config/rope.h"

namespace millrace::model {

using kernels::dense_matrix;

namespace {

kernels::ConstMatrix rows_of(kernels::ConstMatrix matrix, int64_t first, int64_t count) {
  matrix.data = static_cast<const std::byte*>(matrix.data) +
                first * matrix.row_stride * dtype_bytes(matrix.dtype);
  matrix.rows = count;
  return matrix;
}

kernels::ConstFloat8Matrix rows_of(kernels::ConstFloat8Matrix matrix, int64_t first,
                                   int64_t count) {
  matrix.data += first * matrix.row_stride;
  matrix.scales += first;
  matrix.rows = count;
  return matrix;
}

}  // namespace

Result<LayerForward> LayerForward::create(kernels::Device& device, const ModelWeights& weights,
                                          int64_t max_rows) {
  LayerForward forward(device, weights, max_rows);
  const auto& shard = weights.shard;
  const int64_t element = dtype_bytes(weights.compute_dtype);
  const int64_t qkv_width =
      int64_t{shard.num_query_heads + 2 * shard.num_kv_heads} * weights.config.head_dim;
  // Room for a product's result that an operation reads: Q, K and V, later gate and up if needed.
  int64_t projected_row = qkv_width * dtype_bytes(forward.projection_dtype_);
  const int64_t widest = std::max({shard.ffn_size, shard.expert_ffn_size, shard.shared_ffn_size});
  const int64_t products = device.info().fuses_swiglu ? 0 : widest;
  projected_row = std::max(projected_row, 2 * products * int64_t{sizeof(float)});
  MR_ASSIGN_OR_RETURN(forward.normed_,
                      device.allocate(max_rows * weights.config.hidden_size * element));
  MR_ASSIGN_OR_RETURN(forward.projected_, device.allocate(max_rows * projected_row));
  if (weights.config.joint_qk_norm) {
    MR_ASSIGN_OR_RETURN(forward.squares_, device.allocate(2 * max_rows * int64_t{sizeof(float)}));
  }
  const int64_t activated =
      std::max({max_rows * shard.ffn_size, forward.expert_rows() * shard.expert_ffn_size,
                forward.shared_expert_rows() * shard.shared_ffn_size});
  MR_ASSIGN_OR_RETURN(forward.activated_, device.allocate(activated * element));
  MR_RETURN_IF_ERROR(forward.allocate_quantized());
  MR_RETURN_IF_ERROR(forward.allocate_experts());
  return forward;
}

Result<void> LayerForward::allocate_quantized() {
  if (weights_->quantization == Quantization::kNone) return {};
  const auto& config = weights_->config;
  const auto& shard = weights_->shard;
  const int64_t query_width = int64_t{shard.num_query_heads} * config.head_dim;
  const int64_t widest = std::max({int64_t{config.hidden_size}, query_width,
                                   int64_t{shard.ffn_size}, int64_t{shard.shared_ffn_size}});
  MR_ASSIGN_OR_RETURN(quantized_, device_->allocate(max_rows_ * widest));
  MR_ASSIGN_OR_RETURN(row_scales_, device_->allocate(max_rows_ * int64_t{sizeof(float)}));
  return {};
}

int64_t LayerForward::expert_rows() const {
  const auto& experts = weights_->config.experts;
  return kernels::expert_scratch_rows(max_rows_, experts.num_experts, experts.experts_per_token,
                                      device_->info().expert_row_step);
}

int64_t LayerForward::shared_expert_rows() const {
  return kernels::expert_scratch_rows(max_rows_, 1, 1, device_->info().expert_row_step);
}

Result<void> LayerForward::allocate_experts() {
  const auto& experts = weights_->config.experts;
  if (experts.num_experts == 0) return {};
  const int64_t num_choices = max_rows_ * experts.experts_per_token;
  const int64_t num_elements =
      std::max(expert_rows(), shared_expert_rows()) * weights_->config.hidden_size;
  MR_ASSIGN_OR_RETURN(chosen_, device_->allocate(num_choices * int64_t{sizeof(int32_t)}));
  MR_ASSIGN_OR_RETURN(chosen_weights_, device_->allocate(num_choices * int64_t{sizeof(float)}));
  MR_ASSIGN_OR_RETURN(gathered_,
                      device_->allocate(num_elements * dtype_bytes(weights_->compute_dtype)));
  const auto quantized = [](const LayerWeights& layer) { return layer.experts.quantized(); };
  if (std::ranges::any_of(weights_->layers, quantized)) {
    const auto& shard = weights_->shard;
    const int64_t num_rows = std::max(expert_rows(), shared_expert_rows());
    const int64_t num_codes = std::max(expert_rows() * shard.expert_ffn_size,
                                       shared_expert_rows() * shard.shared_ffn_size);
    MR_ASSIGN_OR_RETURN(expert_codes_, device_->allocate(num_codes));
    MR_ASSIGN_OR_RETURN(expert_scales_, device_->allocate(num_rows * int64_t{sizeof(float)}));
  }
  if (device_->info().expert_row_step > 0) return {};
  MR_ASSIGN_OR_RETURN(outputs_, device_->allocate(num_elements * int64_t{sizeof(float)}));
  return {};
}

kernels::Matrix LayerForward::normed(int64_t num_rows) const {
  return dense_matrix(normed_.data(), weights_->compute_dtype, num_rows,
                      weights_->config.hidden_size);
}

kernels::Float8Matrix LayerForward::quantized(int64_t num_rows, int64_t cols) const {
  return {.data = quantized_.as<Float8>(),
          .scales = row_scales_.as<float>(),
          .rows = num_rows,
          .cols = cols,
          .row_stride = cols};
}

kernels::ConstFloat8Matrix LayerForward::float8_rms_norm(const float* hidden, const float* weight,
                                                         int64_t num_rows) {
  MR_CHECK(num_rows <= max_rows_, "{} rows, scratch for {}", num_rows, max_rows_);
  const auto out = quantized(num_rows, weights_->config.hidden_size);
  device_->float8_rms_norm(
      {.x = hidden, .weight = weight, .eps = weights_->config.rms_norm_eps, .out = out});
  return out;
}

kernels::ConstFloat8Matrix LayerForward::quantize(const kernels::ConstMatrix& rows) {
  const auto out = quantized(rows.rows, rows.cols);
  device_->float8_quantize({.a = rows, .out = out});
  return out;
}

void LayerForward::rms_norm(const float* hidden, const float* weight, int64_t num_rows) {
  MR_CHECK(num_rows <= max_rows_, "{} rows, scratch for {}", num_rows, max_rows_);
  device_->rms_norm({.x = hidden,
                     .weight = weight,
                     .eps = weights_->config.rms_norm_eps,
                     .out = normed(num_rows)});
}

Result<void> LayerForward::qkv(int32_t layer, const float* hidden, int64_t num_rows,
                               const int32_t* positions, int64_t prompt_tokens,
                               const QkvOutput& out, const SumOverTp& sum_over_tp) {
  const auto& shard = weights_->shard;
  return project({.num_query_heads = shard.num_query_heads, .num_kv_heads = shard.num_kv_heads},
                 layer, hidden, num_rows, positions, prompt_tokens, out, sum_over_tp);
}

Result<void> LayerForward::q(int32_t layer, const float* hidden, int64_t num_rows,
                             const int32_t* positions, int64_t prompt_tokens, const QkvOutput& out,
                             const SumOverTp& sum_over_tp) {
  return project({.num_query_heads = weights_->shard.num_query_heads}, layer, hidden, num_rows,
                 positions, prompt_tokens, out, sum_over_tp);
}

Result<void> LayerForward::kv(int32_t layer, const float* hidden, int64_t num_rows,
                              const int32_t* positions, int64_t prompt_tokens, const QkvOutput& out,
                              const SumOverTp& sum_over_tp) {
  const auto& shard = weights_->shard;
  return project({.first = shard.num_query_heads, .num_kv_heads = shard.num_kv_heads}, layer,
                 hidden, num_rows, positions, prompt_tokens, out, sum_over_tp);
}

Result<void> LayerForward::sum_squares(const QkvHeads& heads, int64_t num_rows,
                                       const SumOverTp& sum_over_tp) {
  const auto& config = weights_->config;
  if (!config.joint_qk_norm) return {};
  device_->qkv_squares({.qkv = projected_.data(),
                        .qkv_dtype = projection_dtype_,
                        .num_rows = num_rows,
                        .num_query_heads = heads.num_query_heads,
                        .num_kv_heads = heads.num_kv_heads,
                        .head_dim = config.head_dim,
                        .squares = squares_.as<float>()});
  if (weights_->tp.size == 1) return {};
  MR_CHECK(sum_over_tp != nullptr, "a norm over heads of {} ranks on one of them",
           weights_->tp.size);
  return sum_over_tp(squares_.as<float>(), 2 * num_rows);
}

Result<void> LayerForward::project(const QkvHeads& heads, int32_t layer, const float* hidden,
                                   int64_t num_rows, const int32_t* positions,
                                   int64_t prompt_tokens, const QkvOutput& out,
                                   const SumOverTp& sum_over_tp) {
  const auto& config = weights_->config;
  const auto rotation = weights_->rotation(layer, prompt_tokens);
  const auto& w = weights_->layers[static_cast<size_t>(layer)];
  const int64_t first = heads.first * config.head_dim;
  const int64_t width = int64_t{heads.num_query_heads + 2 * heads.num_kv_heads} * config.head_dim;
  const float* bias = w.qkv_bias == nullptr ? nullptr : w.qkv_bias + first;
  const auto projected = dense_matrix(projected_.data(), projection_dtype_, num_rows, width);
  if (w.float8.qkv.data != nullptr) {
    device_->float8_gemm({.a = float8_rms_norm(hidden, w.attention_norm, num_rows),
                          .b = rows_of(w.float8.qkv, first, width),
                          .bias = bias,
                          .c = projected});
  } else {
    rms_norm(hidden, w.attention_norm, num_rows);
    device_->gemm(
        {.a = normed(num_rows), .b = rows_of(w.qkv, first, width), .bias = bias, .c = projected});
  }
  MR_RETURN_IF_ERROR(sum_squares(heads, num_rows, sum_over_tp));
  // Over all ranks: a kv head counts once for each rank that has it, in the sum and here.
  const auto& shard = weights_->shard;
  const int64_t all_elements = int64_t{weights_->tp.size} * config.head_dim;
  device_->rope_qkv({.qkv = projected_.data(),
                     .qkv_dtype = projection_dtype_,
                     .num_rows = num_rows,
                     .num_query_heads = heads.num_query_heads,
                     .num_kv_heads = heads.num_kv_heads,
                     .head_dim = config.head_dim,
                     .positions = positions,
                     .rotary_dim = rotation.rotary_dim,
                     .interleaved = rotation.interleaved,
                     .inv_freq = rotation.inv_freq,
                     .turn_scale = rotation.turn_scale,
                     .q_norm = w.q_norm,
                     .k_norm = w.k_norm,
                     .squares = config.joint_qk_norm ? squares_.as<float>() : nullptr,
                     .num_q_squares = all_elements * shard.num_query_heads,
                     .num_k_squares = all_elements * shard.num_kv_heads,
                     .norm_eps = config.rms_norm_eps,
                     .dtype = out.dtype,
                     .q = out.q,
                     .k = out.k,
                     .v = out.v,
                     .kv_stride = out.kv_stride});
  return {};
}

void LayerForward::attention_output(int32_t layer, const void* attention, int64_t num_rows,
                                    float* out, bool accumulate) {
  const auto& w = weights_->layers[static_cast<size_t>(layer)];
  const int64_t width = int64_t{weights_->shard.num_query_heads} * weights_->config.head_dim;
  const auto rows = dense_matrix(attention, weights_->compute_dtype, num_rows, width);
  const auto sum = dense_matrix(out, DType::kFloat32, num_rows, weights_->config.hidden_size);
  if (w.float8.o.data != nullptr) {
    device_->float8_gemm({.a = quantize(rows),
                          .b = w.float8.o,
                          .bias = w.o_bias,
                          .c = sum,
                          .accumulate = accumulate});
  } else {
    device_->gemm({.a = rows, .b = w.o, .bias = w.o_bias, .c = sum, .accumulate = accumulate});
  }
}

void LayerForward::mlp(int32_t layer, const float* hidden, int64_t num_rows, float* out,
                       bool accumulate) {
  const auto& w = weights_->layers[static_cast<size_t>(layer)];
  if (w.experts.num_experts > 0) {
    rms_norm(hidden, w.mlp_norm, num_rows);
    return run_mixture(w, num_rows, out, accumulate);
  }
  if (w.float8.gate_up.data == nullptr) {
    rms_norm(hidden, w.mlp_norm, num_rows);
    return run_mlp(w.gate_up, w.down, num_rows, out, accumulate);
  }
  run_float8_mlp(float8_rms_norm(hidden, w.mlp_norm, num_rows), w.float8.gate_up, w.float8.down,
                 out, accumulate);
}

void LayerForward::run_mlp(const kernels::ConstMatrix& gate_up, const kernels::ConstMatrix& down,
                           int64_t num_rows, float* out, bool accumulate) {
  const auto activated =
      dense_matrix(activated_.data(), weights_->compute_dtype, num_rows, down.cols);
  device_->swiglu({.a = normed(num_rows),
                   .gate_up = gate_up,
                   .activation = weights_->config.activation,
                   .products = projected_.as<float>(),
                   .out = activated});
  device_->gemm({.a = activated,
                 .b = down,
                 .c = dense_matrix(out, DType::kFloat32, num_rows, weights_->config.hidden_size),
                 .accumulate = accumulate});
}

void LayerForward::run_float8_mlp(const kernels::ConstFloat8Matrix& rows,
                                  const kernels::ConstFloat8Matrix& gate_up,
                                  const kernels::ConstFloat8Matrix& down, float* out,
                                  bool accumulate) {
  const auto activated =
      dense_matrix(activated_.data(), weights_->compute_dtype, rows.rows, down.cols);
  device_->float8_swiglu({.a = rows,
                          .gate_up = gate_up,
                          .activation = weights_->config.activation,
                          .products = projected_.as<float>(),
                          .out = activated});
  device_->float8_gemm(
      {.a = quantize(activated),
       .b = down,
       .c = dense_matrix(out, DType::kFloat32, rows.rows, weights_->config.hidden_size),
       .accumulate = accumulate});
}

void LayerForward::add_attention(int32_t layer, float* sum, int64_t num_rows, float* hidden) {
  add_sum(weights_->layers[static_cast<size_t>(layer)].post_attention_norm, sum, num_rows, hidden);
}

void LayerForward::add_mlp(int32_t layer, float* sum, int64_t num_rows, float* hidden) {
  add_sum(weights_->layers[static_cast<size_t>(layer)].post_mlp_norm, sum, num_rows, hidden);
}

void LayerForward::add_sum(const float* norm, float* sum, int64_t num_rows, float* hidden) {
  const int64_t width = weights_->config.hidden_size;
  if (norm != nullptr) {
    device_->rms_norm({.x = sum,
                       .weight = norm,
                       .eps = weights_->config.rms_norm_eps,
                       .out = dense_matrix(sum, DType::kFloat32, num_rows, width)});
  }
  device_->add({.x = hidden, .y = sum, .count = num_rows * width});
}

// The router reads the rows as they are; experts in 8 bits read them quantised, once for all.
void LayerForward::run_mixture(const LayerWeights& layer, int64_t num_rows, float* out,
                               bool accumulate) {
  const auto& shared = layer.shared_expert;
  kernels::ConstFloat8Matrix rows;
  if (layer.experts.quantized()) rows = quantize(normed(num_rows));
  run_experts(layer.experts, rows, num_rows, out, accumulate);
  if (shared.num_experts == 0) return;
  if (shared.router != nullptr) {
    run_experts(shared, rows, num_rows, out, /*accumulate=*/true);
  } else if (shared.quantized()) {
    run_float8_mlp(rows, shared.float8.gate_up, shared.float8.down, out, /*accumulate=*/true);
  } else {
    run_mlp(shared.gate_up, shared.down, num_rows, out, /*accumulate=*/true);
  }
}

void LayerForward::route(const ExpertWeights& experts, int64_t num_rows) {
  device_->route({.a = normed(num_rows),
                  .router = experts.router,
                  .bias = experts.router_bias,
                  .correction = experts.correction,
                  .num_experts = experts.num_experts,
                  .experts_per_row = experts.experts_per_token,
                  .weighting = experts.weighting,
                  .factor = experts.weight_factor,
                  .experts = chosen_.as<int32_t>(),
                  .weights = chosen_weights_.as<float>()});
}

void LayerForward::run_experts(const ExpertWeights& experts, const kernels::ConstFloat8Matrix& rows,
                               int64_t num_rows, float* out, bool accumulate) {
  route(experts, num_rows);
  if (experts.quantized()) {
    return device_->float8_experts({.a = rows,
                                    .num_experts = experts.num_experts,
                                    .experts_per_row = experts.experts_per_token,
                                    .experts = chosen_.as<int32_t>(),
                                    .weights = chosen_weights_.as<float>(),
                                    .gate_up = experts.float8.gate_up,
                                    .down = experts.float8.down,
                                    .activation = weights_->config.activation,
                                    .dtype = weights_->compute_dtype,
                                    .gathered = gathered_.data(),
                                    .products = projected_.as<float>(),
                                    .activated = activated_.data(),
                                    .quantized = expert_codes_.as<Float8>(),
                                    .row_scales = expert_scales_.as<float>(),
                                    .outputs = outputs_.as<float>(),
                                    .out = out,
                                    .accumulate = accumulate});
  }
  device_->experts({.a = normed(num_rows),
                    .num_experts = experts.num_experts,
                    .experts_per_row = experts.experts_per_token,
                    .experts = chosen_.as<int32_t>(),
                    .weights = chosen_weights_.as<float>(),
                    .gate_up = experts.gate_up,
                    .down = experts.down,
                    .activation = weights_->config.activation,
                    .gate_up_bias = experts.gate_up_bias,
                    .down_bias = experts.down_bias,
                    .gathered = gathered_.data(),
                    .products = projected_.as<float>(),
                    .activated = activated_.data(),
                    .outputs = outputs_.as<float>(),
                    .out = out,
                    .accumulate = accumulate});
}

void LayerForward::logits(const float* hidden, int64_t num_rows, float* out) {
  rms_norm(hidden, weights_->final_norm, num_rows);
  device_->gemm({.a = normed(num_rows),
                 .b = weights_->lm_head,
                 .c = dense_matrix(out, DType::kFloat32, num_rows, weights_->lm_head.rows)});
}

}  // namespace millrace::model
