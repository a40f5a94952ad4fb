// SPDX-License-Identifier: Apache-2.0
// Estimates of a layer's pages from their digests, and the order in which they are attended: the
// same formulas as PageKernel::estimate and rank_pages of decode/attention. In a window the order
// is by position.

#include "common/check.h"
#include "common/page_tokens.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/pages/block_sort.cuh"
#include "kernels/cuda/sm90/pages/log_sum.cuh"
#include "kernels/cuda/sm90/pages/page_launches.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kEstimateThreads = 256;
constexpr int kEstimateWarps = kEstimateThreads / kWarpThreads;
constexpr int kOrderThreads = 1024;
constexpr int kMaxGroup = 32;
constexpr uint64_t kNoPage = ~uint64_t{0};  // behind all keys

__device__ float over_warp(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// A bound of the log of the mean exponential of scores that lie within `half` of a centre, relative
// to it, at a mean distance of `radius`. The mean is largest if each is at the centre or the upper
// limit.
__device__ float log_mean_bound(float half, float radius) {
  if (half <= 0) return 0;
  const float share = fminf(1.0F, radius / half);
  return half + logf(share + (1 - share) * expf(-half));
}

// A warp takes one page at a time; each lane has kDim / 32 dimensions.
template <int kDim, bool kBound>
__global__ void __launch_bounds__(kEstimateThreads)
    estimate_kernel(const PageTables t, int32_t layer, const float* q, float scale,
                    const PageEstimates out, int32_t* arrivals) {
  constexpr int kLaneDims = kDim / kWarpThreads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  if (arrivals != nullptr && blockIdx.x == 0 && threadIdx.x == 0) arrivals[kv_head] = 0;
  for (int page = static_cast<int>(blockIdx.x) * kEstimateWarps + warp; page < t.num_pages;
       page += static_cast<int>(gridDim.x) * kEstimateWarps) {
    const int64_t number = t.number(layer, kv_head, page);
    const int64_t first_row = static_cast<int64_t>(kv_head) * t.group;
    if (!t.is_kept(number)) {
      if (lane < t.group) out.rank[(first_row + lane) * t.num_pages + page] = -INFINITY;
      continue;
    }
    const float* const digest = t.digests + number * 3 * kDim;
    float low[kLaneDims], high[kLaneDims], mean[kLaneDims];
#pragma unroll
    for (int e = 0; e < kLaneDims; ++e) {
      low[e] = digest[e * kWarpThreads + lane];
      high[e] = digest[kDim + e * kWarpThreads + lane];
      mean[e] = digest[2 * kDim + e * kWarpThreads + lane];
    }
    const auto tokens =
        static_cast<float>(min(kPageTokens, t.num_tokens - int64_t{page} * kPageTokens));
    const float count = logf(tokens);
    for (int g = 0; g < t.group; ++g) {
      const float* const row = q + (first_row + g) * kDim;
      float middle = 0, radius = 0, square = 0, upper = 0, half = 0, most = 0;
#pragma unroll
      for (int e = 0; e < kLaneDims; ++e) {
        const float x = row[e * kWarpThreads + lane];
        const float size = fabsf(x);
        middle += x * (0.5F * (low[e] + high[e]));
        radius += size * mean[e];
        square += (x * mean[e]) * (x * mean[e]);
        if constexpr (kBound) {
          upper += fmaxf(x * low[e], x * high[e]);
          half += size * (0.5F * (high[e] - low[e]));
          most += size * fmaxf(fabsf(low[e]), fabsf(high[e]));
        }
      }
      middle = over_warp(middle);
      radius = over_warp(radius);
      square = over_warp(square);
      const int64_t at = (first_row + g) * t.num_pages + page;
      if constexpr (kBound) {
        upper = over_warp(upper);
        half = over_warp(half);
        most = over_warp(most);
        // Roundings of the bound, of the score that it bounds, and of the radius; CpuPageKernel has
        // the reasons.
        const float error = 4 * static_cast<float>(kDim + 2) * 0x1p-24F * most;
        const float wide = radius * 1.0001F + 0x1p-20F * most;
        const float by_radius =
            scale * middle + log_mean_bound(scale * (half + error), scale * wide);
        if (lane == 0) {
          out.bound[at] = count + fminf(scale * upper, by_radius) + scale * error + 1e-4F;
        }
      }
      if (lane == 0) {
        out.centre[at] = count + scale * middle;
        out.spread[at] = scale * PageRuleNumbers::kGaussian * sqrtf(square);
        out.rank[at] = count + scale * (middle + radius);
      }
    }
  }
}

// Maps keys to numbers in reverse order: the greatest key gets the smallest number.
__device__ uint32_t descending(float key) {
  const uint32_t bits = __float_as_uint(key);
  return ~((bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U);
}

// One thread block for each kv head. It sums the mass that the digests promise to each query head;
// the key of a page is its greatest share of such a sum. Leading pages come first, the others by
// key. Pages that are not kept take no part and are sorted to the end.
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const PageTables t, const PageEstimates estimates, const float* tail_lse,
                 const PageOrder order, int padded) {
  extern __shared__ uint64_t keys[];  // [padded]
  __shared__ LogSum parts[kOrderThreads / kWarpThreads];
  __shared__ float totals[kMaxGroup];
  const int kv_head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpThreads;
  const float* const rank = estimates.rank + static_cast<int64_t>(kv_head) * t.group * t.num_pages;

  // The same number of warps for each query head.
  const int warps_a_head = kOrderThreads / kWarpThreads / t.group;
  const int head = warp / warps_a_head;
  if (head < t.group) {
    LogSum sum;
    const int first = thread - head * warps_a_head * kWarpThreads;
    for (int page = first; page < t.num_pages; page += warps_a_head * kWarpThreads) {
      sum.add(rank[head * t.num_pages + page]);
    }
    sum = sum.over_warp();
    if (thread % kWarpThreads == 0) parts[warp] = sum;
  }
  __syncthreads();
  if (thread < t.group) {
    LogSum sum;
    if (tail_lse != nullptr) sum.add(tail_lse[kv_head * t.group + thread]);
    for (int w = 0; w < warps_a_head; ++w) sum.merge(parts[thread * warps_a_head + w]);
    totals[thread] = sum.log();
  }
  __syncthreads();

  for (int page = thread; page < padded; page += kOrderThreads) {
    uint64_t key = kNoPage;
    if (page < t.num_pages && rank[page] != -INFINITY) {
      float share = -INFINITY;
      for (int g = 0; g < t.group; ++g) {
        share = fmaxf(share, rank[g * t.num_pages + page] - totals[g]);
      }
      const uint32_t place = PageRuleNumbers::leads(page, t.num_pages) ? 0 : descending(share);
      key = uint64_t{place} << 32 | static_cast<uint32_t>(page);
    }
    keys[page] = key;
  }
  block_sort(keys, padded);
  if (thread == 0 && keys[0] == kNoPage) order.count[kv_head] = 0;
  for (int i = thread; i < padded && keys[i] != kNoPage; i += kOrderThreads) {
    order.pages[static_cast<int64_t>(kv_head) * t.num_pages + i] = static_cast<int32_t>(keys[i]);
    if (i + 1 == padded || keys[i + 1] == kNoPage) order.count[kv_head] = i + 1;
  }
}

// One warp for each kv head.
__global__ void __launch_bounds__(kWarpThreads)
    list_kernel(const PageTables t, int32_t layer, int32_t first_page, const PageOrder order,
                int32_t* arrivals) {
  const int kv_head = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  int32_t* const pages = order.pages + static_cast<int64_t>(kv_head) * t.num_pages;
  int count = 0;
  for (int base = first_page; base < t.num_pages; base += kWarpThreads) {
    const int page = base + lane;
    const bool is_there = page < t.num_pages && t.is_kept(t.number(layer, kv_head, page));
    const unsigned there = __ballot_sync(0xffffffffu, is_there);
    if (is_there) pages[count + __popc(there & ((1U << lane) - 1))] = page;
    count += __popc(there);
  }
  if (lane != 0) return;
  order.count[kv_head] = count;
  arrivals[kv_head] = 0;
}

}  // namespace

void estimate_pages(const PageTables& tables, int32_t layer, const float* q, float scale,
                    const PageEstimates& estimates, int32_t* arrivals, cudaStream_t stream) {
  // A few pages for each warp, so that the fixed cost of a block is shared by them.
  const dim3 grid(
      static_cast<unsigned>(min(128, (tables.num_pages + kEstimateWarps - 1) / kEstimateWarps)),
      static_cast<unsigned>(tables.num_kv_heads));
  const auto launch = [&](auto* kernel) {
    kernel<<<grid, kEstimateThreads, 0, stream>>>(tables, layer, q, scale, estimates, arrivals);
  };
  const bool bound = estimates.bound != nullptr;
  if (tables.head_dim == 256) {
    launch(bound ? estimate_kernel<256, true> : estimate_kernel<256, false>);
  } else if (tables.head_dim == 128) {
    launch(bound ? estimate_kernel<128, true> : estimate_kernel<128, false>);
  } else {
    launch(bound ? estimate_kernel<64, true> : estimate_kernel<64, false>);
  }
  MR_CUDA_CHECK_LAUNCH();
}

void order_pages(const PageTables& tables, const PageEstimates& estimates, const float* tail_lse,
                 const PageOrder& order, cudaStream_t stream) {
  MR_CHECK(tables.group <= kMaxGroup, "{} query heads of a kv head", tables.group);
  int padded = 64;
  while (padded < tables.num_pages) padded *= 2;
  const auto bytes = static_cast<size_t>(padded) * sizeof(uint64_t);
  MR_CUDA_CHECK(cudaFuncSetAttribute(order_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
  order_kernel<<<static_cast<unsigned>(tables.num_kv_heads), kOrderThreads, bytes, stream>>>(
      tables, estimates, tail_lse, order, padded);
  MR_CUDA_CHECK_LAUNCH();
}

void list_pages(const PageTables& tables, int32_t layer, int32_t first_page, const PageOrder& order,
                int32_t* arrivals, cudaStream_t stream) {
  list_kernel<<<static_cast<unsigned>(tables.num_kv_heads), kWarpThreads, 0, stream>>>(
      tables, layer, first_page, order, arrivals);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
