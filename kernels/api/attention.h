// SPDX-License-Identifier: Apache-2.0
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
  std::span<const RowTile> tiles;  // host memory, disjoint; outputs of rows in no tile are not
                                   // written
  IndexView index;                 // of the query heads
  // Number of keys that each row sees, itself included; exact. The index is then ignored, and no tile
  // runs densely. 0: no window.
  int64_t window = 0;
  // [num_query_heads] or null: for each head, a logit that takes part in the softmax of its rows but has
  // no value (Xiao et al. 2023, section 3.3; gpt-oss). It multiplies `out` by 1 / (1 + exp(sink - lse)).
  // It is not part of lse, nor of what is estimated from Q and K: shares of mass refer to the keys alone.
  const float* sinks = nullptr;
  void* out = nullptr;   // [num_rows, num_query_heads, head_dim], kv.dtype
  float* lse = nullptr;  // [num_query_heads, num_rows] natural log, or null. Over the keys that the
                         // row attended to: the dense LSE only from first_dense_position on.
  // [num_query_heads] or null: (query, key) pairs with key <= query that the head's tiles computed
  // (coverage.h).
  int64_t* covered_pairs = nullptr;
};

// One query row per head, which sees all keys: a decode step over a part of the tokens. The results of
// several parts are merged by their lse (model/generator.h).
struct DecodeAttentionParams {
  const float* q = nullptr;  // [num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;             // num_tokens may be 0: out = 0, lse = -inf
  float* out = nullptr;  // [num_query_heads, head_dim]
  float* lse = nullptr;  // [num_query_heads]
};

}  // namespace millrace::kernels
