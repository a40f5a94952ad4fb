// SPDX-License-Identifier: Apache-2.0
// Descriptors of tensors for the GPU's copy engine (TMA).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/api/float8_params.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels::cuda {

// `data` is the slab's K or V, read in boxes of `box_keys` keys by 64 columns of one kv head, in
// the 128-byte swizzle that the tensor cores read. Keys past num_tokens read as zeros.
CUtensorMap key_tensor_map(const void* data, const KvSlab& slab, int box_keys = kPageTokens);

// int8 keys [num_kv_heads, num_tokens, head_dim], read in boxes of `box_keys` keys of one kv head.
// Up to a head_dim of 128 a box has whole keys, beyond that 128 columns. The swizzle is the above
// from a head_dim of 128 on, and the 64-byte swizzle at 64. Keys past num_tokens read as zeros.
CUtensorMap int8_key_tensor_map(const int8_t* keys, int32_t num_kv_heads, int64_t num_tokens,
                                int32_t head_dim, int box_keys);

// Matrices of 16-bit elements, stacked row after row, read in boxes of 64 columns by `box_rows`
// rows of one matrix, with the 128-byte swizzle. The part of a box outside its matrix reads as
// zeros and is not written.
CUtensorMap matrix_tensor_map(const ConstMatrix& stacked, int num_matrices, int box_rows);
// The same for 8-bit floats, in boxes of 128 columns.
CUtensorMap matrix_tensor_map(const ConstFloat8Matrix& stacked, int num_matrices, int box_rows);

}  // namespace millrace::kernels::cuda
