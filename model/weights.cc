// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/units.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/element_conversion.h"
#include "model/checkpoint/unused_tensors.h"
#include "model/checkpoint/weight_uploader.h"
#include "model/config/rope.h"
#include "model/device_support.h"
#include "model/expert_loader.h"
#include "model/fingerprint.h"
#include "model/load_kv_scales.h"
#include "model/load_model_config.h"
#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

namespace {

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";

// The norms besides input_layernorm; null: none.
struct NormNames {
  const char *post_attention, *mlp, *post_mlp;
};

NormNames norm_names(LayerNorms norms) {
  switch (norms) {
    case LayerNorms::kBefore:
      return {nullptr, "post_attention_layernorm", nullptr};
    case LayerNorms::kGemma:
      return {"post_attention_layernorm", "pre_feedforward_layernorm",
              "post_feedforward_layernorm"};
    case LayerNorms::kGlm4:
      return {"post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
  }
  MR_CHECK(false, "norms {}", static_cast<int>(norms));
}

// sqrt(hidden_size), rounded as Transformers does it.
float embedding_scale(const ModelConfig& config, DType dtype) {
  if (!config.scaled_embedding) return 1;
  const auto root = std::sqrt(static_cast<float>(config.hidden_size));
  if (dtype == DType::kFloat32) return root;
  std::array<std::byte, sizeof(uint16_t)> rounded;
  float scale = 0;
  convert_elements(std::as_bytes(std::span(&root, 1)).data(), DType::kFloat32, 1, rounded.data(),
                   dtype);
  convert_elements(rounded.data(), dtype, 1, &scale, DType::kFloat32);
  return scale;
}

// Where the last layer is tied to the embedding, a checkpoint may have the one matrix under either
// name.
Result<Tensor> find_embedding(const TensorSource& tensors, const ModelConfig& config) {
  const std::array shape{int64_t{config.vocab_size}, int64_t{config.hidden_size}};
  const bool only_head = config.tied_embeddings && !tensors.contains(kEmbedding);
  return tensors.find(only_head && tensors.contains(kHead) ? kHead : kEmbedding, shape);
}

// A checkpoint that has both matrices although the config ties them: as in Transformers, they are
// tied only if they are equal.
Result<void> untie_if_different(const TensorSource& tensors, ModelWeights& weights) {
  auto& config = weights.config;
  if (!config.tied_embeddings || !tensors.contains(kEmbedding) || !tensors.contains(kHead)) {
    return {};
  }
  const std::array shape{int64_t{config.vocab_size}, int64_t{config.hidden_size}};
  MR_ASSIGN_OR_RETURN(const auto embedding, tensors.find(kEmbedding, shape));
  MR_ASSIGN_OR_RETURN(const auto head, tensors.find(kHead, shape));
  if (head.dtype == embedding.dtype && std::ranges::equal(head.bytes, embedding.bytes)) return {};
  config.tied_embeddings = false;
  weights.warnings.push_back(fmt::format(
      "tie_word_embeddings is true, but {} and {} differ: they are not tied", kEmbedding, kHead));
  return {};
}

// Puts the weights of one rank together, tensor by tensor. Tensor names are Hugging Face's.
class WeightLoader {
 public:
  WeightLoader(const TensorSource& tensors, kernels::DeviceMemory& device, ModelWeights& weights,
               int num_threads)
      : tensors_(&tensors),
        weights_(&weights),
        config_(&weights.config),
        shard_(&weights.shard),
        uploader_(device, weights.storage, num_threads),
        experts_(tensors, uploader_, weights) {}

  Result<void> load() {
    MR_RETURN_IF_ERROR(load_vocabulary());
    for (int32_t i = 0; i < config_->num_layers; ++i) {
      const auto prefix = fmt::format("model.layers.{}.", i);
      is_float8_ = weights_->quantization != Quantization::kNone && i + 1 < config_->num_layers;
      qkv_is_float8_ = quantizes_qkv(weights_->quantization, i, config_->num_layers);
      LayerWeights layer;
      MR_RETURN_IF_ERROR(load_attention(prefix, layer));
      MR_RETURN_IF_ERROR(load_norms(prefix, layer));
      MR_RETURN_IF_ERROR(config_->has_experts(i) ? experts_.load(prefix, layer)
                                                 : load_mlp(prefix, layer));
      weights_->layers.push_back(layer);
    }
    MR_ASSIGN_OR_RETURN(weights_->final_norm, norm("model.norm.weight", hidden()));
    MR_ASSIGN_OR_RETURN(weights_->inv_freq, uploader_.vector(rope_inv_freq(*config_)));
    if (!config_->local_rope_layers.empty()) {
      MR_ASSIGN_OR_RETURN(weights_->local_inv_freq,
                          uploader_.vector(local_rope_inv_freq(*config_)));
    }
    if (!config_->unrotated_layers.empty()) {
      const std::vector<float> zeros(static_cast<size_t>(config_->num_turned() / 2));
      MR_ASSIGN_OR_RETURN(weights_->zero_inv_freq, uploader_.vector(zeros));
    }
    if (max_short_rope_tokens(*config_) == 0) return {};
    MR_ASSIGN_OR_RETURN(weights_->long_inv_freq,
                        uploader_.vector(rope_inv_freq(*config_, /*long_prompt=*/true)));
    return {};
  }

 private:
  int64_t hidden() const { return config_->hidden_size; }
  int64_t head_dim() const { return config_->head_dim; }

  Result<TensorSlice> matrix(const std::string& name, int64_t rows, int64_t cols) const {
    MR_ASSIGN_OR_RETURN(auto tensor, tensors_->find(name, std::array{rows, cols}));
    return TensorSlice::whole(std::move(tensor));
  }
  Result<TensorSlice> vector(const std::string& name, int64_t count) const {
    MR_ASSIGN_OR_RETURN(auto tensor, tensors_->find(name, std::array{count}));
    return TensorSlice::whole(std::move(tensor));
  }
  // The weights of a norm in the form that the arithmetic uses, times `scale`.
  Result<const float*> norm(const std::string& name, int64_t count, double scale = 1) {
    MR_ASSIGN_OR_RETURN(const auto weight, vector(name, count));
    return norm_of(weight, scale);
  }
  // This rank's heads of a norm over all of them.
  Result<const float*> joint_norm(const std::string& name, int64_t all_heads, int64_t first_head,
                                  int64_t num_heads) {
    MR_ASSIGN_OR_RETURN(const auto all, vector(name, all_heads * head_dim()));
    return norm_of(all.rows(first_head * head_dim(), num_heads * head_dim()));
  }
  Result<const float*> norm_of(const TensorSlice& weight, double scale = 1) {
    const int64_t count = weight.num_rows;
    if (config_->norm_offset == 0 && scale == 1) {
      return uploader_.stacked_vector(std::array{weight});
    }
    std::vector<float> values(static_cast<size_t>(count));
    convert_elements(weight.row_data(0), weight.tensor.dtype, count, values.data(),
                     DType::kFloat32);
    for (float& value : values) {
      value = static_cast<float>(double{value + config_->norm_offset} * scale);
    }
    return uploader_.vector(values);
  }
  Result<void> load_norms(const std::string& prefix, LayerWeights& layer) {
    MR_ASSIGN_OR_RETURN(layer.attention_norm, norm(prefix + "input_layernorm.weight", hidden()));
    const NormNames names = norm_names(config_->norms);
    MR_ASSIGN_OR_RETURN(layer.mlp_norm, norm(prefix + names.mlp + ".weight", hidden()));
    if (!config_->norms_sums()) return {};
    MR_ASSIGN_OR_RETURN(layer.post_attention_norm,
                        norm(prefix + names.post_attention + ".weight", hidden()));
    MR_ASSIGN_OR_RETURN(layer.post_mlp_norm, norm(prefix + names.post_mlp + ".weight", hidden()));
    return {};
  }
  // Rows [first, first + rows) of a tensor of `all_rows`, where the checkpoint has several stacked.
  Result<TensorSlice> rows_of(const std::string& name, int64_t all_rows, int64_t first,
                              int64_t rows, int64_t cols) const {
    MR_ASSIGN_OR_RETURN(const auto all, matrix(name, all_rows, cols));
    return all.rows(first, rows);
  }

  Result<void> load_vocabulary() {
    const std::array shape{int64_t{config_->vocab_size}, hidden()};
    MR_ASSIGN_OR_RETURN(auto tensor, find_embedding(*tensors_, *config_));
    const DType file_dtype = tensor.dtype;
    // Copied, also where the device could read it in the mapped file: a file that is written over
    // must not change a group's answers.
    MR_ASSIGN_OR_RETURN(weights_->embedding, table(tensor, 0, shape[0], file_dtype));

    const int64_t first = shard_->vocab_begin;
    const int64_t count = shard_->vocab_end - first;
    if (!config_->tied_embeddings) {
      MR_ASSIGN_OR_RETURN(tensor, tensors_->find(kHead, shape));
    } else if (file_dtype == weights_->compute_dtype) {
      const auto* rows = static_cast<const std::byte*>(weights_->embedding.data);
      weights_->lm_head = kernels::dense_matrix(
          static_cast<const void*>(rows + first * hidden() * dtype_bytes(file_dtype)), file_dtype,
          count, hidden());
      return {};
    }
    MR_ASSIGN_OR_RETURN(weights_->lm_head, table(tensor, first, count, weights_->compute_dtype));
    return {};
  }

  // Rows of the embedding or the last layer.
  Result<kernels::ConstMatrix> table(const Tensor& tensor, int64_t first_row, int64_t num_rows,
                                     DType dtype) {
    return uploader_.stack(std::array{TensorSlice::whole(tensor).rows(first_row, num_rows)}, dtype);
  }

  // Into `wide` or `float8`, depending on whether the layer is quantised.
  Result<void> stack_linear(std::span<const TensorSlice> slices, kernels::ConstMatrix& wide,
                            kernels::ConstFloat8Matrix& float8) {
    if (is_float8_) {
      MR_ASSIGN_OR_RETURN(float8, uploader_.stack_float8(slices));
    } else {
      MR_ASSIGN_OR_RETURN(wide, uploader_.stack(slices, weights_->compute_dtype));
    }
    return {};
  }

  Result<void> load_attention(const std::string& prefix, LayerWeights& layer) {
    const std::string attention = prefix + "self_attn.";
    MR_RETURN_IF_ERROR(load_qkv(attention, layer));

    const int64_t query_cols = config_->num_query_heads * head_dim();
    MR_ASSIGN_OR_RETURN(const auto o, matrix(attention + "o_proj.weight", hidden(), query_cols));
    const auto columns =
        o.cols(shard_->first_query_head * head_dim(), shard_->num_query_heads * head_dim());
    MR_RETURN_IF_ERROR(stack_linear(std::array{columns}, layer.o, layer.float8.o));
    MR_RETURN_IF_ERROR(load_sinks(attention + "sinks", layer));
    return load_output_bias(attention + "o_proj.bias", layer);
  }

  Result<void> load_sinks(const std::string& name, LayerWeights& layer) {
    if (!config_->attention_sinks) return {};
    MR_ASSIGN_OR_RETURN(const auto all, vector(name, config_->num_query_heads));
    const auto own = all.rows(shard_->first_query_head, shard_->num_query_heads);
    layer.host_sinks.resize(static_cast<size_t>(shard_->num_query_heads));
    convert_elements(own.row_data(0), own.tensor.dtype, own.num_rows, layer.host_sinks.data(),
                     DType::kFloat32);
    MR_ASSIGN_OR_RETURN(layer.sinks, uploader_.vector(layer.host_sinks));
    return {};
  }

  Result<void> load_qkv(const std::string& attention, LayerWeights& layer) {
    struct Projection {
      char name;
      int64_t num_heads, first_head, shard_heads;
    };
    const std::array<Projection, 3> projections{{
        {'q', config_->num_query_heads, shard_->first_query_head, shard_->num_query_heads},
        {'k', config_->num_kv_heads, shard_->first_kv_head, shard_->num_kv_heads},
        {'v', config_->num_kv_heads, shard_->first_kv_head, shard_->num_kv_heads},
    }};
    const int64_t fused_rows = (config_->num_query_heads + 2 * config_->num_kv_heads) * head_dim();
    int64_t fused_first = 0;  // first row of the projection in the fused tensor
    std::vector<TensorSlice> weights, biases;
    for (const auto& [name, num_heads, first_head, shard_heads] : projections) {
      const auto tensor = fmt::format("{}{}_proj.", attention, name);
      const int64_t all_rows = num_heads * head_dim();
      const int64_t first = first_head * head_dim();
      const int64_t count = shard_heads * head_dim();
      MR_ASSIGN_OR_RETURN(const auto weight,
                          config_->fused_qkv ? rows_of(attention + "qkv_proj.weight", fused_rows,
                                                       fused_first, all_rows, hidden())
                                             : matrix(tensor + "weight", all_rows, hidden()));
      fused_first += all_rows;
      weights.push_back(weight.rows(first, count));
      if (!config_->qkv_bias) continue;
      MR_ASSIGN_OR_RETURN(const auto bias, vector(tensor + "bias", all_rows));
      biases.push_back(bias.rows(first, count));
    }
    if (!qkv_is_float8_) {
      MR_ASSIGN_OR_RETURN(layer.qkv, uploader_.stack(weights, weights_->compute_dtype));
    } else {
      MR_ASSIGN_OR_RETURN(layer.float8.qkv, uploader_.stack_float8(weights));
    }
    if (config_->qkv_bias) {
      MR_ASSIGN_OR_RETURN(layer.qkv_bias, uploader_.stacked_vector(biases));
    }
    if (config_->joint_qk_norm) {
      MR_ASSIGN_OR_RETURN(layer.q_norm,
                          joint_norm(attention + "q_norm.weight", config_->num_query_heads,
                                     shard_->first_query_head, shard_->num_query_heads));
      MR_ASSIGN_OR_RETURN(layer.k_norm,
                          joint_norm(attention + "k_norm.weight", config_->num_kv_heads,
                                     shard_->first_kv_head, shard_->num_kv_heads));
    }
    if (config_->qk_norm) {
      MR_ASSIGN_OR_RETURN(layer.q_norm,
                          norm(attention + "q_norm.weight", head_dim(), config_->query_scale));
      MR_ASSIGN_OR_RETURN(layer.k_norm, norm(attention + "k_norm.weight", head_dim()));
    }
    return {};
  }

  // Loaded wherever it exists: gpt-oss has it, Llama has it where attention_bias says so, and Qwen
  // models converted to Llama have one of zeros. The ranks' products are summed, so only one rank
  // has the bias.
  Result<void> load_output_bias(const std::string& name, LayerWeights& layer) {
    if (!tensors_->contains(name)) return {};
    MR_ASSIGN_OR_RETURN(const auto bias, vector(name, hidden()));
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (std::ranges::all_of(bias.tensor.bytes, is_zero)) return {};
    if (weights_->tp.rank != 0) return {};
    MR_ASSIGN_OR_RETURN(layer.o_bias, uploader_.stacked_vector(std::array{bias}));
    return {};
  }

  Result<void> load_mlp(const std::string& prefix, LayerWeights& layer) {
    const std::string mlp = prefix + "mlp.";
    const int64_t all = config_->ffn_size;
    const int64_t count = shard_->ffn_size;
    const int64_t first = weights_->tp.rank * count;
    const bool fused = config_->fused_gate_up;
    const std::string both = mlp + "gate_up_proj.weight";
    MR_ASSIGN_OR_RETURN(const auto gate, fused ? rows_of(both, 2 * all, 0, all, hidden())
                                               : matrix(mlp + "gate_proj.weight", all, hidden()));
    MR_ASSIGN_OR_RETURN(const auto up, fused ? rows_of(both, 2 * all, all, all, hidden())
                                             : matrix(mlp + "up_proj.weight", all, hidden()));
    MR_ASSIGN_OR_RETURN(const auto down, matrix(mlp + "down_proj.weight", hidden(), all));
    MR_RETURN_IF_ERROR(stack_linear(std::array{gate.rows(first, count), up.rows(first, count)},
                                    layer.gate_up, layer.float8.gate_up));
    return stack_linear(std::array{down.cols(first, count)}, layer.down, layer.float8.down);
  }

  const TensorSource* tensors_;
  ModelWeights* weights_;
  const ModelConfig* config_;
  const ShardShape* shard_;
  WeightUploader uploader_;
  ExpertLoader experts_;
  bool is_float8_ = false;      // the current layer, except its experts and Q, K, V
  bool qkv_is_float8_ = false;  // Q, K and V of the current layer
};

Result<std::unique_ptr<TensorSource>> open_tensors(const std::string& model,
                                                   const ModelConfig& config) {
  if (is_synthetic_model(model)) return synthetic_tensors(model);
  MR_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::open(model, config.float8));
  return std::unique_ptr<TensorSource>(std::make_unique<Checkpoint>(std::move(checkpoint)));
}

}  // namespace

Rotation ModelWeights::rotation(int32_t layer, int64_t prompt_tokens) const {
  Rotation rotation{.rotary_dim = config.num_turned(), .interleaved = config.interleaved_rope};
  if (config.unrotated_layers.contains(layer)) {
    rotation.inv_freq = zero_inv_freq;
  } else if (config.local_rope_layers.contains(layer)) {
    rotation.inv_freq = local_inv_freq;
  } else {
    const bool is_long = long_inv_freq != nullptr && prompt_tokens > max_short_rope_tokens(config);
    rotation.inv_freq = is_long ? long_inv_freq : inv_freq;
    rotation.turn_scale = rope_turn_scale(config);
  }
  return rotation;
}

bool quantizes_qkv(Quantization quantization, int32_t layer, int32_t num_layers) {
  if (quantization != Quantization::kFloat8 || layer + 1 == num_layers) return false;
  return layer < num_layers / 2 || layer >= ceil_div(3 * num_layers, 4);
}

std::string arithmetic_name(const Arithmetic& arithmetic) {
  // Increase when other products are quantised, or in another way: K and V kept before are then not
  // found.
  constexpr int kQuantizationVersion = 2;
  std::string name(dtype_name(arithmetic.dtype));
  if (arithmetic.quantization == Quantization::kNone) return name;
  return fmt::format("{} {} {}", name, quantization_name(arithmetic.quantization),
                     kQuantizationVersion);
}

std::string_view quantization_name(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone:
      return "none";
    case Quantization::kFloat8:
      return "fp8";
    case Quantization::kFloat8ExceptQkv:
      return "fp8-except-qkv";
  }
  return "?";
}

Result<std::unique_ptr<ModelWeights>> load_model_weights(const std::string& model,
                                                         TensorParallel tp, Arithmetic arithmetic,
                                                         kernels::DeviceMemory& device,
                                                         int num_threads) {
  auto weights = std::make_unique<ModelWeights>();
  MR_ASSIGN_OR_RETURN(weights->config, load_model_config(model));
  MR_ASSIGN_OR_RETURN(weights->shard, shard_shape(weights->config, tp));
  weights->tp = tp;
  weights->compute_dtype = arithmetic.dtype;
  weights->quantization = arithmetic.quantization;
  weights->embedding_scale = embedding_scale(weights->config, arithmetic.dtype);
  MR_RETURN_IF_ERROR(check_device(model, *weights, device.info()));
  MR_ASSIGN_OR_RETURN(const auto tensors, open_tensors(model, weights->config));
  MR_RETURN_IF_ERROR(untie_if_different(*tensors, *weights));
  weights->fingerprint = fingerprint(weights->config, *tensors, num_threads);
  MR_RETURN_IF_ERROR(WeightLoader(*tensors, device, *weights, num_threads).load());
  MR_RETURN_IF_ERROR(tensors->unchanged());
  const auto unused = report_unused(*tensors, is_kv_scale_name);
  if (!unused.ok()) return error(unused.error().code, "{}: {}", model, unused.error().message);
  for (const auto& lines : {weights->config.warnings, tensors->warnings(), *unused}) {
    weights->warnings.insert(weights->warnings.end(), lines.begin(), lines.end());
  }
  return weights;
}

Result<DType> stored_dtype(const std::string& model) {
  if (is_synthetic_model(model)) return DType::kBFloat16;
  MR_ASSIGN_OR_RETURN(const auto config, load_model_config(model));
  MR_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(model, config.float8));
  MR_ASSIGN_OR_RETURN(const auto table, find_embedding(checkpoint, config));
  return table.dtype;
}

}  // namespace millrace::model
