// SPDX-License-Identifier: Apache-2.0
// Pages: one block per page, one thread for two of its columns, which it keeps in registers: K is read
// once, and a column is summed in the order of the keys. Spans: one block per span, one thread for a column.
#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/adaptive/int8_steps.cuh"
#include "kernels/cuda/sm90/estimation/adaptive/sampled_rows.h"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/rows/element.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kKeys = static_cast<int>(kPageTokens);
constexpr int kWarp = 32;

template <typename Element>
__device__ float2 widen_pair(uint32_t pair) {
  return {widen(Element{static_cast<uint16_t>(pair)}),
          widen(Element{static_cast<uint16_t>(pair >> 16)})};
}

// The largest over the block; `of_warps` is shared memory that nothing else uses.
template <int kNumWarps>
__device__ float largest_of_block(float x, float (&of_warps)[kNumWarps]) {
  x = largest_of_warp(x);
  if constexpr (kNumWarps > 1) {
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kNumWarps; ++warp) x = ptx::larger_or_nan(x, of_warps[warp]);
  }
  return x;
}

// Called by the block of the last page or span.
__device__ void clear_unused_steps(const KeyMoments& moments, int64_t first_place) {
  for (int64_t i = moments.count + threadIdx.x; i < moments.num_places(); i += blockDim.x) {
    moments.steps[first_place + i] = {};
  }
}

// blockIdx.x is the page, blockIdx.y the kv head.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kHeadDim / 2)
    key_page_kernel(const __grid_constant__ KvSlab kv, int32_t first_kv_head,
                    const __grid_constant__ KeyPages out) {
  __shared__ float of_warps[2][kHeadDim / 2 / kWarp];
  const KeyMoments& pages = out.pages;
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
  const float share = __fdiv_rn(1.0F, static_cast<float>(num_keys));
  const float2 mean = {__fmul_rn(sum.x, share), __fmul_rn(sum.y, share)};
  const Int8Steps centre_steps(
      largest_of_block(ptx::larger_or_nan(fabsf(mean.x), fabsf(mean.y)), of_warps[0]));
  const int2 centre = {centre_steps(mean.x), centre_steps(mean.y)};
  const float2 origin = {__fmul_rn(centre_steps.step(), static_cast<float>(centre.x)),
                         __fmul_rn(centre_steps.step(), static_cast<float>(centre.y))};

  float largest = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (i >= num_keys) continue;
    const float2 key = widen_pair<Element>(keys[i]);
    largest = ptx::larger_or_nan(largest, fabsf(__fsub_rn(key.x, origin.x)));
    largest = ptx::larger_or_nan(largest, fabsf(__fsub_rn(key.y, origin.y)));
  }
  const Int8Steps steps(largest_of_block(largest, of_warps[1]));

  const int64_t out_row = (int64_t{blockIdx.y} * pages.count + page) * kPageTokens;
  auto* out_keys = reinterpret_cast<uint16_t*>(out.keys + out_row * kHeadDim) + threadIdx.x;
  int2 squares = {};
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const float2 key = widen_pair<Element>(keys[i]);
    const int x = i < num_keys ? steps(__fsub_rn(key.x, origin.x)) : 0;
    const int y = i < num_keys ? steps(__fsub_rn(key.y, origin.y)) : 0;
    squares = {squares.x + x * x, squares.y + y * y};
    out_keys[i * (kHeadDim / 2)] = static_cast<uint16_t>(two_bytes(x, y));
  }
  const int64_t first_place = int64_t{blockIdx.y} * pages.num_places();
  const int64_t place = first_place + centre_place(page);
  const int column = 2 * static_cast<int>(threadIdx.x);
  *reinterpret_cast<uint16_t*>(pages.centres + place * kHeadDim +
                               scan_column<kHeadDim>(column / 4) + column % 4) =
      static_cast<uint16_t>(two_bytes(centre.x, centre.y));
  *reinterpret_cast<__half2*>(pages.spreads + place * kHeadDim + column) =
      __floats2half2_rn(__fmul_rn(static_cast<float>(squares.x), share),
                        __fmul_rn(static_cast<float>(squares.y), share));
  if (threadIdx.x == 0) {
    pages.steps[first_place + page] = {.centre = centre_steps.step(), .keys = steps.step()};
  }
  if (page + 1 == pages.count) clear_unused_steps(pages, first_place);
}

// blockIdx.x is the span, blockIdx.y the kv head.
template <int kHeadDim>
__global__ void __launch_bounds__(kHeadDim) key_span_kernel(const __grid_constant__ KeyPages keys) {
  __shared__ float of_warps[2][kHeadDim / kWarp];
  constexpr int kPages = static_cast<int>(kSpanPages);
  const KeyMoments& pages = keys.pages;
  const KeyMoments& spans = keys.spans;
  const int64_t span = blockIdx.x;
  const int64_t first_page_place = int64_t{blockIdx.y} * pages.num_places();
  const auto d = static_cast<int>(threadIdx.x);
  const int centre_column = scan_column<kHeadDim>(d / 4) + d % 4;
  float centres[kPages];
  float variances[kPages];
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const int64_t page = 1 + span * kPages + i;
    const VectorSteps steps = pages.steps[first_page_place + page];
    const int64_t at = (first_page_place + centre_place(page)) * kHeadDim;
    centres[i] = steps.centre * static_cast<float>(pages.centres[at + centre_column]);
    variances[i] = steps.keys * steps.keys * __half2float(pages.spreads[at + d]);
    mean += centres[i];
  }
  mean *= 1.0F / kPages;
  const Int8Steps centre_steps(largest_of_block(fabsf(mean), of_warps[0]));
  const int32_t centre = centre_steps(mean);
  const float origin = centre_steps.step() * static_cast<float>(centre);
  float variance = 0;
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    variance += variances[i] + (centres[i] - origin) * (centres[i] - origin);
  }
  variance *= 1.0F / kPages;
  const float step = sqrtf(largest_of_block(variance, of_warps[1])) * (1.0F / 127);
  const int64_t first_place = int64_t{blockIdx.y} * spans.num_places();
  const int64_t at = (first_place + centre_place(span)) * kHeadDim;
  spans.centres[at + centre_column] = static_cast<int8_t>(centre);
  spans.spreads[at + d] = __float2half_rn(step > 0 ? variance / (step * step) : 0.0F);
  if (d == 0) spans.steps[first_place + span] = {.centre = centre_steps.step(), .keys = step};
  if (span + 1 == spans.count) clear_unused_steps(spans, first_place);
}

}  // namespace

void launch_key_pages(const KvSlab& kv, int32_t first_kv_head, int32_t num_kv_heads,
                      const KeyPages& pages, cudaStream_t stream) {
  const auto grid = [&](const KeyMoments& moments) {
    return dim3(static_cast<unsigned>(moments.count), static_cast<unsigned>(num_kv_heads));
  };
  for_elements(kv.dtype, kv.head_dim, [&](auto element, auto head_dim) {
    key_page_kernel<decltype(element), head_dim()>
        <<<grid(pages.pages), head_dim() / 2, 0, stream>>>(kv, first_kv_head, pages);
  });
  MR_CUDA_CHECK_LAUNCH();
  if (pages.spans.count == 0) return;
  for_head_dim(kv.head_dim, [&](auto head_dim) {
    key_span_kernel<head_dim()><<<grid(pages.spans), head_dim(), 0, stream>>>(pages);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
