#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "common/check.h"
#include "kernels/cuda/check.h"

namespace millrace::kernels::cuda {
namespace {

// Through the runtime, so that nothing links to the driver: a binary built with CUDA then starts
// on a machine without one.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  MR_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                 cudaEnableDefault, &found));
  MR_CHECK(found == cudaDriverEntryPointSuccess, "cuTensorMapEncodeTiled: query result {}",
           static_cast<int>(found));
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

// Of any 16-bit elements: a copy only moves them, and zeros are the same bits in bfloat16 and
// float16.
CUtensorMap key_tensor_map(const void* data, const KvSlab& slab, int box_keys) {
  static const auto encode = encode_function();
  constexpr cuuint32_t kBoxColumns = 64;
  const auto row_bytes = static_cast<cuuint64_t>(slab.head_dim) * 2;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(slab.head_dim),
                               static_cast<cuuint64_t>(slab.num_tokens),
                               static_cast<cuuint64_t>(slab.num_kv_heads)};
  const cuuint64_t strides[2] = {row_bytes, row_bytes * static_cast<cuuint64_t>(slab.token_stride)};
  const cuuint32_t box[3] = {kBoxColumns, static_cast<cuuint32_t>(box_keys), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  MR_CHECK(result == CUDA_SUCCESS, "tensor map of {} tokens at stride {}, head_dim {}: error {}",
           slab.num_tokens, slab.token_stride, slab.head_dim, static_cast<int>(result));
  return map;
}

}  // namespace millrace::kernels::cuda
