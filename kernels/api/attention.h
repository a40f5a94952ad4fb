// Causal attention of a rank's query rows over the live layer's keys, dense or sparse by the index.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/index/index.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels {

// The live layer's K and V of all tokens, for the kv heads of this rank, in position order.
struct KvSlab {
  const void* k = nullptr;  // [num_kv_heads, token_stride, head_dim], after RoPE
  const void* v = nullptr;  // [num_kv_heads, token_stride, head_dim]
  DType dtype = DType::kFloat32;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t num_tokens = 0;
  int64_t token_stride = 0;  // tokens between heads, >= num_tokens
};

// Query head h reads kv head h / (num_query_heads / kv.num_kv_heads). scale = 1 / sqrt(head_dim)
// unless the model says otherwise. Softmax statistics and accumulation are float32; exp2 with the
// scale folded in is allowed.
struct AttentionParams {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim], kv.dtype
  int64_t num_rows = 0;
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;
  std::span<const RowTile> tiles;  // host memory; no row is in two, and the outputs of rows in none
                                   // are left as they are
  IndexView index;                 // of the query heads
  // Keys that each row sees: itself and those before it, exactly. The index is not read then, and no
  // tile runs densely. 0: no window.
  int64_t window = 0;
  // [num_query_heads] or null: a logit of each head in its rows' softmax that has no value (Xiao et
  // al. 2023, section 3.3; gpt-oss). So `out` is what it would be without, times
  // 1 / (1 + exp(sink - lse)). Not part of lse, nor of anything that is found from Q and K: shares of
  // mass are of the keys'. Where DeviceInfo::attention_sinks.
  const float* sinks = nullptr;
  void* out = nullptr;   // [num_rows, num_query_heads, head_dim], kv.dtype
  float* lse = nullptr;  // [num_query_heads, num_rows] natural log, or null. Of what the row
                         // attended to, so the dense LSE only from first_dense_position on.
  int64_t* covered_pairs = nullptr;  // [num_query_heads] (query, key) pairs with key <= query that
                                     // the head's tiles computed (coverage.h), or null
};

// One query row per head over keys it may all see: a decode step on a part of the tokens. Results
// of parts merge by their lse (worker-independent: model/generator.h).
struct DecodeAttentionParams {
  const float* q = nullptr;  // [num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;             // num_tokens may be 0: out = 0, lse = -inf
  float* out = nullptr;  // [num_query_heads, head_dim]
  float* lse = nullptr;  // [num_query_heads]
};

}  // namespace millrace::kernels
