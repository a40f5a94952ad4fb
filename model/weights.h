// The weights of one tensor-parallel rank, in device memory.
//
// Column-parallel: q, k, v, gate, up, lm_head (rows of the Hugging Face matrix are split);
// row-parallel: o, down (columns are split; the products of the ranks sum). When tp exceeds the kv
// heads, kv heads are replicated: rank r holds kv head r * num_kv_heads / tp. A rank reads only its
// slices from the mapped files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/config/config.h"

namespace millrace::model {

struct TensorParallel {
  int32_t rank = 0;
  int32_t size = 1;
};

// What a rank holds of the heads and widths.
struct ShardShape {
  int32_t num_query_heads = 0;
  int32_t first_query_head = 0;
  int32_t num_kv_heads = 0;
  int32_t first_kv_head = 0;
  int32_t kv_replicas = 1;  // ranks that hold the same kv head
  int32_t kv_replica = 0;   // which of them this is; 0 stores it
  int32_t ffn_size = 0;
  int32_t vocab_begin = 0;
  int32_t vocab_end = 0;
};

// kUnsupported when heads, ffn or vocabulary do not divide: names the field and the sizes that
// work. (Vocabulary: any; the last rank holds fewer rows.)
Result<ShardShape> shard_shape(const ModelConfig& config, TensorParallel tp);

// Views; the memory is in ModelWeights::storage or host_memory.
struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  kernels::ConstMatrix qkv;         // [(query heads + 2 kv heads) * head_dim, hidden] of this rank
  const float* qkv_bias = nullptr;  // [(query heads + 2 kv heads) * head_dim] or null
  const float* q_norm = nullptr;    // [head_dim], where the model normalises heads
  const float* k_norm = nullptr;    // [head_dim]
  kernels::ConstMatrix o;           // [hidden, query heads * head_dim]
  const float* mlp_norm = nullptr;  // [hidden]
  kernels::ConstMatrix gate_up;     // [2 * ffn of this rank, hidden]: gate rows, then up rows
  kernels::ConstMatrix down;        // [hidden, ffn of this rank]
};

struct ModelWeights {
  ModelConfig config;
  ShardShape shard;
  TensorParallel tp;
  DType compute_dtype = DType::kFloat32;
  std::string fingerprint;  // of the model, the same on all ranks (model/fingerprint.h)

  kernels::ConstMatrix embedding;  // [vocab, hidden], whole, dtype as in the file
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;     // [hidden]
  kernels::ConstMatrix lm_head;          // [vocab_end - vocab_begin, hidden], compute dtype
  const float* inv_freq = nullptr;       // [rotary dimension / 2]
  const float* long_inv_freq = nullptr;  // of prompts beyond max_short_rope_tokens, where others

  std::vector<kernels::DeviceBuffer> storage;
  std::vector<std::shared_ptr<const void>> host_memory;  // mapped files that views point into
};

// `model`: a directory, or the name of a synthetic model (model/synthetic/synthetic_model.h).
// `compute_dtype`: weights are converted to it (norms and biases to float32). kUnsupported: float16
// does not hold them. `num_threads`: that convert what the file has in another form.
// `device` outlives the result. kNotFound: a missing tensor, by name; kCorrupt: a file that lies
// about offsets or shapes; kInvalidArgument: a shape that differs from config.json.
Result<std::unique_ptr<ModelWeights>> load_model_weights(const std::string& model,
                                                         TensorParallel tp, DType compute_dtype,
                                                         kernels::Device& device,
                                                         int num_threads = 1);
// The dtype of the checkpoint's matrices, told by the embedding table.
Result<DType> stored_dtype(const std::string& model);

}  // namespace millrace::model
