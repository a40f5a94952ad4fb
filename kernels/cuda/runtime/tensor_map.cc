// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {
namespace {

// Looked up through the runtime, so that nothing links to the driver: a binary built with CUDA then
// starts on a machine without one.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  MR_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                 cudaEnableDefault, &found));
  MR_CHECK(found == cudaDriverEntryPointSuccess, "cuTensorMapEncodeTiled: query result {}",
           static_cast<int>(found));
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// The shape in a map: sizes from the innermost on, in elements, and the strides between them in
// bytes.
struct MapShape {
  CUtensorMapDataType type;
  std::array<cuuint64_t, 3> sizes;
  std::array<cuuint64_t, 2> strides;
  std::array<cuuint32_t, 2> box;  // columns and rows
  CUtensorMapSwizzle swizzle;
};

CUtensorMap encode_map(const void* data, const MapShape& shape) {
  static const auto encode = encode_function();
  const cuuint32_t box[3] = {shape.box[0], shape.box[1], 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, shape.type, 3, const_cast<void*>(data), shape.sizes.data(), shape.strides.data(),
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  MR_CHECK(result == CUDA_SUCCESS, "tensor map of {} x {} x {}, rows {} bytes apart: error {}",
           shape.sizes[2], shape.sizes[1], shape.sizes[0], shape.strides[0],
           static_cast<int>(result));
  return map;
}

// For any 16-bit elements: a copy only moves them, and zeros are the same bits in bfloat16 and
// float16. Boxes have 64 columns, the 128 bytes of the swizzle.
CUtensorMap encode_narrow_map(const void* data, const std::array<cuuint64_t, 3>& sizes,
                              const std::array<cuuint64_t, 2>& strides, int box_rows) {
  return encode_map(data, {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                           .sizes = sizes,
                           .strides = strides,
                           .box = {64, static_cast<cuuint32_t>(box_rows)},
                           .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

}  // namespace

CUtensorMap key_tensor_map(const void* data, const KvSlab& slab, int box_keys) {
  const auto row_bytes = static_cast<cuuint64_t>(slab.head_dim) * 2;
  return encode_narrow_map(
      data,
      {static_cast<cuuint64_t>(slab.head_dim), static_cast<cuuint64_t>(slab.num_tokens),
       static_cast<cuuint64_t>(slab.num_kv_heads)},
      {row_bytes, row_bytes * static_cast<cuuint64_t>(slab.token_stride)}, box_keys);
}

CUtensorMap int8_key_tensor_map(const int8_t* keys, int32_t num_kv_heads, int64_t num_tokens,
                                int32_t head_dim, int box_keys) {
  const auto row_bytes = static_cast<cuuint64_t>(head_dim);
  const auto rows = static_cast<cuuint64_t>(num_tokens);
  return encode_map(
      keys,
      {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
       .sizes = {row_bytes, rows, static_cast<cuuint64_t>(num_kv_heads)},
       .strides = {row_bytes, row_bytes * rows},
       .box = {static_cast<cuuint32_t>(std::min(head_dim, 128)), static_cast<cuuint32_t>(box_keys)},
       .swizzle = head_dim == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B});
}

CUtensorMap matrix_tensor_map(const ConstMatrix& stacked, int num_matrices, int box_rows) {
  const auto rows = static_cast<cuuint64_t>(stacked.rows / num_matrices);
  const auto row_bytes = static_cast<cuuint64_t>(stacked.row_stride) * 2;
  return encode_narrow_map(
      stacked.data,
      {static_cast<cuuint64_t>(stacked.cols), rows, static_cast<cuuint64_t>(num_matrices)},
      {row_bytes, row_bytes * rows}, box_rows);
}

CUtensorMap matrix_tensor_map(const ConstFloat8Matrix& stacked, int num_matrices, int box_rows) {
  const auto rows = static_cast<cuuint64_t>(stacked.rows / num_matrices);
  const auto row_bytes = static_cast<cuuint64_t>(stacked.row_stride);
  return encode_map(stacked.data, {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                   .sizes = {static_cast<cuuint64_t>(stacked.cols), rows,
                                             static_cast<cuuint64_t>(num_matrices)},
                                   .strides = {row_bytes, row_bytes * rows},
                                   .box = {128, static_cast<cuuint32_t>(box_rows)},
                                   .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

}  // namespace millrace::kernels::cuda
