// SPDX-License-Identifier: Apache-2.0
// The weights of one tensor-parallel rank, in device memory.
//
// Column-parallel: q, k, v, gate, up, lm_head (rows of the Hugging Face matrix are split);
// row-parallel: o, down (columns are split; the products of the ranks sum). When tp exceeds the kv
// heads, kv heads are replicated: rank r holds kv head r * num_kv_heads / tp. A rank reads only its
// slices from the mapped files.
//
// Experts are split by width, as an MLP is: every rank has a part of every expert. If they were
// split by number, ranks would wait for the one whose experts most tokens chose, and a token's sum
// would need an exchange of rows before and after. This way the only communication is the sum over
// tp that an MLP needs. The cost: an expert's products are narrower, and each rank computes the
// whole router.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/api/device_memory.h"
#include "kernels/api/experts.h"
#include "model/config/config.h"

namespace millrace::model {

struct TensorParallel {
  int32_t rank = 0;
  int32_t size = 1;
};

// The heads and widths that a rank holds.
struct ShardShape {
  int32_t num_query_heads = 0;
  int32_t first_query_head = 0;
  int32_t num_kv_heads = 0;
  int32_t first_kv_head = 0;
  int32_t kv_replicas = 1;      // ranks that hold the same kv head
  int32_t kv_replica = 0;       // which of them this is; 0 stores it
  int32_t ffn_size = 0;         // 0 where no layer has an MLP
  int32_t expert_ffn_size = 0;  // of every expert
  int32_t shared_ffn_size = 0;
  int32_t vocab_begin = 0;
  int32_t vocab_end = 0;
};

// kUnsupported when heads or widths do not divide: names the field and the sizes that work. The
// vocabulary need not divide; the last rank holds fewer rows.
Result<ShardShape> shard_shape(const ModelConfig& config, TensorParallel tp);

// Both matrices of experts, in the shapes given in ExpertWeights.
struct Float8ExpertWeights {
  kernels::ConstFloat8Matrix gate_up, down;
};

// Stacked experts, in device memory.
struct ExpertWeights {
  int32_t num_experts = 0;  // 0: the layer has none
  int32_t experts_per_token = 0;
  kernels::ExpertWeighting weighting = kernels::ExpertWeighting::kSoftmax;
  const float* router = nullptr;       // [num_experts, hidden]; null: one that all tokens choose
  const float* router_bias = nullptr;  // [num_experts] or null
  const float* correction = nullptr;   // [num_experts] or null: RouteParams::correction
  float weight_factor = 1;
  kernels::ConstMatrix gate_up;  // [num_experts * 2 * ffn of this rank, hidden]
  kernels::ConstMatrix down;     // [num_experts * hidden, ffn of this rank]
  // Replaces the two above where the model is quantised and these experts are too.
  Float8ExpertWeights float8;
  const float* gate_up_bias = nullptr;  // [num_experts * 2 * ffn of this rank] or null
  const float* down_bias = nullptr;     // [num_experts * hidden], of the first rank, or null

  bool quantized() const { return float8.gate_up.data != nullptr; }
};

// The precision of the products of linear layers.
enum class Quantization {
  kNone,  // the compute dtype
  // 8-bit floats, weights scaled by output channel and activations by token. Two exceptions:
  // - The last layer, except its experts. Nothing after it would correct its errors, so it alone
  //   makes a quarter of the logits' divergence, and its products, except K and V, are only those
  //   of rows with logits.
  // - Q, K and V of the third quarter of the layers. Heads that look up what they copy compare them
  //   there, and rounding them costs a small model 2 points of copies; in other layers it costs
  //   none (docs/notebook/float8.md).
  kFloat8,
  // The same, but Q, K and V of all layers are in the compute dtype.
  kFloat8ExceptQkv,
};

// Whether Q, K and V of a layer are computed in 8-bit floats.
bool quantizes_qkv(Quantization quantization, int32_t layer, int32_t num_layers);

// "none" or "fp8", as in vLLM, or "fp8-except-qkv".
std::string_view quantization_name(Quantization quantization);

// How a model computes: `dtype` is that of its KV cache, embedding and lm_head; `quantization` is
// that of its other linear layers, including those of experts.
struct Arithmetic {
  DType dtype = DType::kFloat32;
  Quantization quantization = Quantization::kNone;

  Arithmetic(DType dtype_in, Quantization quantization_in = Quantization::kNone)  // NOLINT
      : dtype(dtype_in), quantization(quantization_in) {}
};

// "bfloat16", "bfloat16 fp8 2" and so on. Two caches are equal only if their names are.
std::string arithmetic_name(const Arithmetic& arithmetic);

// The linear layers of a quantised layer, in the shapes given in LayerWeights.
struct Float8Weights {
  kernels::ConstFloat8Matrix qkv;  // without data if not quantised
  kernels::ConstFloat8Matrix o, gate_up, down;
};

// Views; the memory is in ModelWeights::storage.
struct LayerWeights {
  const float* attention_norm = nullptr;       // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden], where the model norms sums
  kernels::ConstMatrix qkv;         // [(query heads + 2 kv heads) * head_dim, hidden] of this rank
  const float* qkv_bias = nullptr;  // [(query heads + 2 kv heads) * head_dim] or null
  // [head_dim] where the model normalises each head; [heads of this rank * head_dim] where it
  // normalises all heads together.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* sinks = nullptr;          // [query heads] or null
  std::vector<float> host_sinks;         // the same, for the host
  kernels::ConstMatrix o;                // [hidden, query heads * head_dim]
  const float* o_bias = nullptr;         // [hidden], of the first rank, or null
  const float* mlp_norm = nullptr;       // [hidden]
  const float* post_mlp_norm = nullptr;  // [hidden], where the model norms sums
  kernels::ConstMatrix gate_up;          // [2 * ffn of this rank, hidden]: gate rows, then up rows
  kernels::ConstMatrix down;             // [hidden, ffn of this rank]
  Float8Weights float8;                  // replaces the four matrices where the layer is quantised
  // Replaces gate, up and down. `shared_expert`: one expert that all tokens choose.
  ExpertWeights experts;
  ExpertWeights shared_expert;
};

// How a layer's heads are rotated: fields of kernels::RopeQkvParams.
struct Rotation {
  int32_t rotary_dim = 0;
  bool interleaved = false;
  const float* inv_freq = nullptr;
  float turn_scale = 1;
};

struct ModelWeights {
  // For a prompt of `prompt_tokens` tokens, and for what is generated after it.
  Rotation rotation(int32_t layer, int64_t prompt_tokens) const;

  ModelConfig config;
  ShardShape shard;
  TensorParallel tp;
  DType compute_dtype = DType::kFloat32;
  Quantization quantization = Quantization::kNone;
  std::string fingerprint;  // of the model, the same on all ranks (model/fingerprint.h)

  kernels::ConstMatrix embedding;  // [vocab, hidden], whole, dtype as in the file
  float embedding_scale = 1;
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;      // [hidden]
  kernels::ConstMatrix lm_head;           // [vocab_end - vocab_begin, hidden], compute dtype
  const float* inv_freq = nullptr;        // [rotary dimension / 2]
  const float* long_inv_freq = nullptr;   // for prompts beyond max_short_rope_tokens, if different
  const float* local_inv_freq = nullptr;  // for local_rope_layers, if any
  const float* zero_inv_freq = nullptr;   // for unrotated_layers, if any

  std::vector<kernels::DeviceBuffer> storage;
  // What whoever starts the model should know of its files: the config's warnings, and tensors that
  // were not read.
  std::vector<std::string> warnings;
};

// `model`: a directory, or the name of a synthetic model (model/synthetic/synthetic_model.h).
// Weights are converted to `arithmetic` (norms and biases to float32). If `arithmetic` asks for
// 8-bit floats, weights that are 8-bit floats with one scale a row, or one scale for all, are taken
// as they are; others are quantised by row (common/float8.h). `num_threads`: threads that convert
// weights which the file has in another form. `device` outlives the result.
// Nothing of the result is in the files, which may change once it is there. kUnsupported: float16
// cannot represent the weights, or the device does not compute the model's experts, experts in 8
// bits, or a rank's part of their width; or a tensor that belongs to a weight is none that is read.
// kNotFound: a missing tensor, by name. kCorrupt: a file whose offsets or shapes are false.
// kInvalidArgument: a shape that differs from config.json. kIo: a file changed meanwhile.
Result<std::unique_ptr<ModelWeights>> load_model_weights(const std::string& model,
                                                         TensorParallel tp, Arithmetic arithmetic,
                                                         kernels::DeviceMemory& device,
                                                         int num_threads = 1);
// The dtype of the checkpoint's matrices, taken from the embedding table.
Result<DType> stored_dtype(const std::string& model);

}  // namespace millrace::model
