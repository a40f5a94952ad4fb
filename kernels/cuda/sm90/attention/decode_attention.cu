// SPDX-License-Identifier: Apache-2.0
// One query row per head, which sees all keys (flash-decoding). Bound by reading K and V once.
//
// 1. A thread block takes one split of the tokens and up to four query heads of one kv head. Its
//    threads are slots of head_dim / 8 lanes; slot s takes keys s, s + slots, ..., each lane eight
//    elements of K and of V, and keeps the softmax state of each head: maximum, sum, weighted V.
// 2. The slots of a block merge, first within warps, then over warps.
// 3. A second kernel merges the splits of a head.
// Every merge is in a fixed order, so two runs give the same bits.

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kVector = 8;
constexpr int kWarpThreads = 32;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kHeads = 4;  // per block: their states and queries take 80 registers per thread
constexpr int kMaxHeadDim = kWarpThreads * kVector;

// Fewer keys than this are not worth another thread block.
constexpr int64_t kMinSplitTokens = 256;

// exp2 of scores that already hold log2(e): one instruction.
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.69314718F;

// Weighted sum of some keys: out = sum / mass, lse = maximum ln 2 + log(mass).
struct SoftmaxState {
  float maximum = -INFINITY;  // of the scores, times log2(e)
  float mass = 0;
  Vector8 sum = {};

  __device__ void add_key(float score, const Vector8& value) {
    const float next = fmaxf(maximum, score);
    const float keep = exp2f(maximum - next);
    const float weight = exp2f(score - next);
    maximum = next;
    mass = mass * keep + weight;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum[e] = sum[e] * keep + weight * value[e];
  }

  __device__ void merge(const SoftmaxState& other) {
    if (other.mass == 0) return;  // no keys: its maximum is -infinity
    const float next = fmaxf(maximum, other.maximum);
    const float keep = exp2f(maximum - next);
    const float weight = exp2f(other.maximum - next);
    maximum = next;
    mass = mass * keep + other.mass * weight;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum[e] = sum[e] * keep + other.sum[e] * weight;
  }

  __device__ SoftmaxState from_lane(int mask) const {
    SoftmaxState other;
    other.maximum = __shfl_xor_sync(0xffffffffu, maximum, mask);
    other.mass = __shfl_xor_sync(0xffffffffu, mass, mask);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      other.sum[e] = __shfl_xor_sync(0xffffffffu, sum[e], mask);
    }
    return other;
  }
};

// States of all heads and splits.
struct Parts {
  float* maximum;  // [query heads, splits]
  float* mass;     // [query heads, splits]
  float* sum;      // [query heads, splits, head_dim]
};

template <typename Element>
struct DecodeProblem {
  const float* q;
  const Element* k;
  const Element* v;
  int64_t num_tokens;
  int64_t token_stride;
  int64_t split_tokens;
  int32_t head_dim;
  int32_t group;  // query heads of a kv head
  int32_t num_splits;
  float scale_log2;
};

// A thread's place in its block: `lanes` threads hold a key's elements, kVector each, and `slots`
// keys are taken at once.
struct KeyLanes {
  __device__ explicit KeyLanes(int head_dim)
      : lanes(head_dim / kVector),
        slots(kThreads / lanes),
        slot(static_cast<int>(threadIdx.x) / lanes),
        element(static_cast<int>(threadIdx.x) % lanes * kVector) {}
  int lanes;
  int slots;
  int slot;
  int element;
};

// The states of a block's warps.
struct DecodeShared {
  float maximum[kWarps][kHeads];
  float mass[kWarps][kHeads];
  __align__(16) float sum[kWarps][kHeads][kMaxHeadDim];
};

// This split's keys, under the chunk's queries.
template <typename Element>
__device__ void add_split(const DecodeProblem<Element>& p, const KeyLanes& place,
                          const Vector8 (&q)[kHeads], SoftmaxState (&states)[kHeads]) {
  const int64_t begin = blockIdx.x * p.split_tokens;
  const int64_t end = min(begin + p.split_tokens, p.num_tokens);
  const int64_t rows = blockIdx.y * p.token_stride;
  // The trip count is the same for all slots, because lanes of a warp exchange their products.
  for (int64_t base = begin; base < end; base += place.slots) {
    const bool valid = base + place.slot < end;
    const int64_t key = valid ? base + place.slot : begin;
    const Vector8 k = load8(p.k + (rows + key) * p.head_dim + place.element);
    const Vector8 v = load8(p.v + (rows + key) * p.head_dim + place.element);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float product = 0;
#pragma unroll
      for (int e = 0; e < kVector; ++e) product += q[h][e] * k[e];
      for (int mask = place.lanes / 2; mask > 0; mask /= 2) {
        product += __shfl_xor_sync(0xffffffffu, product, mask);
      }
      if (valid) states[h].add_key(product * p.scale_log2, v);
    }
  }
}

// Merges the slots of each warp into its first, and writes those of all warps to shared memory.
__device__ void share_states(const KeyLanes& place, SoftmaxState (&states)[kHeads],
                             DecodeShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const bool first_slot = static_cast<int>(threadIdx.x) % kWarpThreads < place.lanes;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int mask = place.lanes; mask < kWarpThreads; mask *= 2) {
      states[h].merge(states[h].from_lane(mask));
    }
    if (!first_slot) continue;
    shared.maximum[warp][h] = states[h].maximum;
    shared.mass[warp][h] = states[h].mass;
    store8(states[h].sum, &shared.sum[warp][h][place.element]);
  }
  __syncthreads();
}

// Merges the first warp's state of a head with those of the others into that of the split.
__device__ SoftmaxState merge_warps(SoftmaxState state, const DecodeShared& shared, int head,
                                    int element) {
  for (int w = 1; w < kWarps; ++w) {
    state.merge({.maximum = shared.maximum[w][head],
                 .mass = shared.mass[w][head],
                 .sum = load8(&shared.sum[w][head][element])});
  }
  return state;
}

// blockIdx: split, kv head, chunk of kHeads query heads of its group.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    decode_split_kernel(const DecodeProblem<Element> p, const Parts parts) {
  __shared__ DecodeShared shared;
  const KeyLanes place(p.head_dim);
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const int num_heads = min(kHeads, p.group - first_head);
  const int64_t query_head = int64_t{blockIdx.y} * p.group + first_head;

  Vector8 q[kHeads];
  SoftmaxState states[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    // Heads past the group's end repeat its last one and are not written.
    const int64_t head = query_head + min(h, num_heads - 1);
    q[h] = load8(p.q + head * p.head_dim + place.element);
  }
  add_split(p, place, q, states);
  share_states(place, states, shared);

  if (threadIdx.x >= place.lanes) return;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= num_heads) break;
    const SoftmaxState state = merge_warps(states[h], shared, h, place.element);
    const int64_t part = (query_head + h) * p.num_splits + blockIdx.x;
    parts.maximum[part] = state.maximum;
    parts.mass[part] = state.mass;
    store8(state.sum, parts.sum + part * p.head_dim + place.element);
  }
}

// One thread block per query head, one thread per element.
__global__ void decode_merge_kernel(const Parts parts, int num_splits, float* out, float* lse) {
  const int64_t head = blockIdx.x;
  const int head_dim = static_cast<int>(blockDim.x);
  float maximum = -INFINITY, mass = 0, sum = 0;
  for (int64_t part = head * num_splits; part < (head + 1) * num_splits; ++part) {
    if (parts.mass[part] == 0) continue;
    const float next = fmaxf(maximum, parts.maximum[part]);
    const float keep = exp2f(maximum - next);
    const float weight = exp2f(parts.maximum[part] - next);
    maximum = next;
    mass = mass * keep + parts.mass[part] * weight;
    sum = sum * keep + parts.sum[part * head_dim + threadIdx.x] * weight;
  }
  out[head * head_dim + threadIdx.x] = mass == 0 ? 0 : sum / mass;
  if (threadIdx.x == 0) lse[head] = mass == 0 ? -INFINITY : maximum * kLn2 + logf(mass);
}

}  // namespace

void decode_attention(const DecodeAttentionParams& params, Context& context) {
  const KvSlab& kv = params.kv;
  const int32_t heads = params.num_query_heads;
  MR_CHECK(kv.head_dim >= kVector && kv.head_dim <= kMaxHeadDim &&
               std::has_single_bit(static_cast<uint32_t>(kv.head_dim)),
           "decode attention: head_dim {}; powers of two from {} to {}", kv.head_dim, kVector,
           kMaxHeadDim);
  MR_CHECK(kv.num_kv_heads > 0 && heads % kv.num_kv_heads == 0, "{} query heads on {}", heads,
           kv.num_kv_heads);
  const int32_t group = heads / kv.num_kv_heads;
  const int64_t chunks = ceil_div(group, kHeads);
  // Two blocks per multiprocessor hide each other's loads.
  const int64_t wanted = ceil_div(2 * context.num_sms, kv.num_kv_heads * chunks);
  const int64_t num_splits =
      std::clamp<int64_t>(ceil_div(kv.num_tokens, kMinSplitTokens), 1, wanted);
  const int64_t num_parts = heads * num_splits;
  const Parts parts{.maximum = context.scratch.allocate<float>(num_parts),
                    .mass = context.scratch.allocate<float>(num_parts),
                    .sum = context.scratch.allocate<float>(num_parts * kv.head_dim)};
  dispatch_dtype(kv.dtype, [&]<typename Element>(Element) {
    const DecodeProblem<Element> problem{.q = params.q,
                                         .k = static_cast<const Element*>(kv.k),
                                         .v = static_cast<const Element*>(kv.v),
                                         .num_tokens = kv.num_tokens,
                                         .token_stride = kv.token_stride,
                                         .split_tokens = ceil_div(kv.num_tokens, num_splits),
                                         .head_dim = kv.head_dim,
                                         .group = group,
                                         .num_splits = static_cast<int32_t>(num_splits),
                                         .scale_log2 = params.scale * kLog2E};
    const dim3 grid(static_cast<unsigned>(num_splits), static_cast<unsigned>(kv.num_kv_heads),
                    static_cast<unsigned>(chunks));
    decode_split_kernel<<<grid, kThreads, 0, context.stream>>>(problem, parts);
  });
  MR_CUDA_CHECK_LAUNCH();
  decode_merge_kernel<<<static_cast<unsigned>(heads), static_cast<unsigned>(kv.head_dim), 0,
                        context.stream>>>(parts, static_cast<int>(num_splits), params.out,
                                          params.lse);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
