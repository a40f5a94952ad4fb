// SPDX-License-Identifier: Apache-2.0
// One block per page, one thread for two of its columns, which it keeps in registers: K is read
// once, and a column is summed in the order of the keys.
#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/adaptive/int8_steps.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/rows/element.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kKeys = static_cast<int>(kPageTokens);

template <typename Element>
__device__ float2 widen_pair(uint32_t pair) {
  return {widen(Element{static_cast<uint16_t>(pair)}),
          widen(Element{static_cast<uint16_t>(pair >> 16)})};
}

template <int kNumWarps>
__device__ float largest_of_block(float x) {
  x = largest_of_warp(x);
  if constexpr (kNumWarps > 1) {
    __shared__ float of_warps[kNumWarps];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kNumWarps; ++warp) x = ptx::larger_or_nan(x, of_warps[warp]);
  }
  return x;
}

// blockIdx.x is the page, blockIdx.y the kv head.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kHeadDim / 2)
    key_page_kernel(const __grid_constant__ KvSlab kv, int32_t first_kv_head,
                    const __grid_constant__ KeyPages pages) {
  const int64_t page = blockIdx.x;
  const int64_t first = page * kPageTokens;
  const int num_keys = static_cast<int>(min(kPageTokens, kv.num_tokens - first));
  const int64_t slab_row = (first_kv_head + int64_t{blockIdx.y}) * kv.token_stride + first;
  const auto* pairs =
      reinterpret_cast<const uint32_t*>(static_cast<const Element*>(kv.k) + slab_row * kHeadDim) +
      threadIdx.x;
  uint32_t keys[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) keys[i] = i < num_keys ? pairs[i * (kHeadDim / 2)] : 0;

  float2 sum = {};
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const float2 key = widen_pair<Element>(keys[i]);  // absent keys add zero
    sum = {__fadd_rn(sum.x, key.x), __fadd_rn(sum.y, key.y)};
  }
  const float inverse = __fdiv_rn(1.0F, static_cast<float>(num_keys));
  const __half2 centre = __floats2half2_rn(__fmul_rn(sum.x, inverse), __fmul_rn(sum.y, inverse));
  const float2 mean = __half22float2(centre);

  float largest = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (i >= num_keys) continue;
    const float2 key = widen_pair<Element>(keys[i]);
    largest = ptx::larger_or_nan(largest, fabsf(__fsub_rn(key.x, mean.x)));
    largest = ptx::larger_or_nan(largest, fabsf(__fsub_rn(key.y, mean.y)));
  }
  const Int8Steps steps(largest_of_block<kHeadDim / 64>(largest));

  const int64_t out_row = (int64_t{blockIdx.y} * pages.num_pages + page) * kPageTokens;
  auto* out = reinterpret_cast<uint16_t*>(pages.keys + out_row * kHeadDim) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const float2 key = widen_pair<Element>(keys[i]);
    const uint32_t both =
        two_bytes(steps(__fsub_rn(key.x, mean.x)), steps(__fsub_rn(key.y, mean.y)));
    out[i * (kHeadDim / 2)] = static_cast<uint16_t>(i < num_keys ? both : 0);
  }
  const int64_t first_place = int64_t{blockIdx.y} * pages.num_places();
  reinterpret_cast<__half2*>(pages.centres +
                             (first_place + centre_place(page)) * kHeadDim)[threadIdx.x] = centre;
  if (threadIdx.x == 0) pages.steps[first_place + page] = steps.step();
  if (page + 1 < pages.num_pages) return;
  for (int64_t i = pages.num_pages + threadIdx.x; i < pages.num_places(); i += blockDim.x) {
    pages.steps[first_place + i] = 0;
  }
}

}  // namespace

void launch_key_pages(const KvSlab& kv, int32_t first_kv_head, int32_t num_kv_heads,
                      const KeyPages& pages, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(pages.num_pages), static_cast<unsigned>(num_kv_heads));
  for_elements(kv.dtype, kv.head_dim, [&](auto element, auto head_dim) {
    key_page_kernel<decltype(element), head_dim()>
        <<<grid, head_dim() / 2, 0, stream>>>(kv, first_kv_head, pages);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
