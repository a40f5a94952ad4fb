// Descriptions of tensors for the copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/api/float8.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels::cuda {

// `data` is the slab's K or its V: boxes of `box_keys` keys by 64 columns of one kv head, in the
// 128-byte swizzle that the tensor cores read. Keys past num_tokens read as zeros.
CUtensorMap key_tensor_map(const void* data, const KvSlab& slab, int box_keys = kPageTokens);

// int8 keys [num_kv_heads, num_tokens, head_dim]: boxes of `box_keys` keys of one kv head, whole up to a
// head_dim of 128, by 128 columns beyond. From 128 on in the swizzle above, at 64 in that of 64 bytes. Keys
// past num_tokens read as zeros.
CUtensorMap int8_key_tensor_map(const int8_t* keys, int32_t num_kv_heads, int64_t num_tokens,
                                int32_t head_dim, int box_keys);

// Matrices of 16-bit elements under one another, the rows of each after those of the one before:
// boxes of 64 columns by `box_rows` rows of one of them, swizzled as above. What a box has outside
// of its matrix reads as zeros and is not written.
CUtensorMap matrix_tensor_map(const ConstMatrix& stacked, int num_matrices, int box_rows);
// The same of 8-bit floats: boxes of 128 columns.
CUtensorMap matrix_tensor_map(const ConstFloat8Matrix& stacked, int num_matrices, int box_rows);

}  // namespace millrace::kernels::cuda
