// SPDX-License-Identifier: Apache-2.0
// Row-wise operations of a transformer layer. The residual stream is float32 on every device. Inputs of
// a GEMM are in the compute dtype; its outputs that an operation here reads are in the device's
// projection dtype (DeviceInfo).
//
// Here and in all Params, a raw pointer is device memory, 16-byte aligned at the start of a row; a
// std::span is host memory, read before the call returns.
#pragma once

#include <cstdint>

#include "kernels/api/activation.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels {

// hidden[r] = scale * table[token_ids[r]]
struct EmbedParams {
  // [num_rows], each in [0, table.rows): checked at admission, not here.
  const int32_t* token_ids = nullptr;
  int64_t num_rows = 0;
  ConstMatrix table;  // [vocab, hidden], any dtype
  float scale = 1;
  float* hidden = nullptr;  // [num_rows, table.cols]
};

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight     (Zhang & Sennrich 2019, eq. 4). `out` may be
// x itself, where it is float32.
struct RmsNormParams {
  const float* x = nullptr;       // [out.rows, out.cols]
  const float* weight = nullptr;  // [out.cols]
  float eps = 0;
  Matrix out;  // in the compute dtype, or float32
};

// squares[r] = {sum of squares of Q, sum of squares of K} in row r of a QKV projection. Summed over the
// ranks that have the heads, they give RMS norms over all heads together. A row's sums do not depend on
// the other rows, nor on whether Q or K is absent.
struct QkvSquaresParams {
  const void* qkv = nullptr;  // this and the following as in RopeQkvParams
  DType qkv_dtype = DType::kFloat32;
  int64_t num_rows = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float* squares = nullptr;  // [num_rows, 2]; 0 for an absent Q or K
};

// Splits a QKV projection, normalises Q and K where the model does, rotates them by their positions
// (Su et al. 2021), and writes K and V head-major.
struct RopeQkvParams {
  const void* qkv = nullptr;  // [num_rows, (num_query_heads + 2 * num_kv_heads) * head_dim]
  DType qkv_dtype = DType::kFloat32;
  int64_t num_rows = 0;
  int32_t num_query_heads = 0;  // 0: only K and V
  int32_t num_kv_heads = 0;     // 0: only Q
  int32_t head_dim = 0;
  const int32_t* positions = nullptr;  // [num_rows], absolute
  // The first rotary_dim elements of a head are rotated, the others are copied. 0: all are rotated.
  int32_t rotary_dim = 0;
  // true: element 2 i is paired with 2 i + 1. false, the layout of most Hugging Face models: i with
  // i + rotary_dim / 2.
  bool interleaved = false;
  const float* inv_freq = nullptr;  // [rotary_dim / 2], rope scaling already applied
  float turn_scale = 1;  // of the rotated elements: YaRN's and LongRoPE's attention factor
  // Weights of RMS norms that are applied before rotation; both or neither. [head_dim]: each head is
  // normalised by itself. With `squares`, [num_query_heads * head_dim] and [num_kv_heads * head_dim]: one
  // norm over all heads of Q and one over all heads of K.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  // [num_rows, 2], QkvSquaresParams::squares summed over all ranks, and the numbers of elements summed.
  const float* squares = nullptr;
  int64_t num_q_squares = 0;
  int64_t num_k_squares = 0;
  float norm_eps = 0;
  DType dtype = DType::kFloat32;  // of q, k, v
  void* q = nullptr;              // [num_rows, num_query_heads, head_dim]
  void* k = nullptr;      // [num_kv_heads, kv_stride, head_dim]: row r of this call goes to r
  void* v = nullptr;      // [num_kv_heads, kv_stride, head_dim]
  int64_t kv_stride = 0;  // tokens between heads

  int32_t num_turned() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
};

// out = activation(gate, up) with gate_up = [gate | up] per row: the second half of a gated MLP on
// devices that do not fuse it (kernels/api/swiglu.h).
struct ActivateParams {
  const float* gate_up = nullptr;  // [out.rows, 2 * out.cols]
  Activation activation;
  Matrix out;  // in the compute dtype
};

// x += y
struct AddParams {
  float* x = nullptr;        // [count]
  const float* y = nullptr;  // [count]
  int64_t count = 0;
};

}  // namespace millrace::kernels
