// SPDX-License-Identifier: Apache-2.0
// Selection by one thread block: finds which of many 32-bit keys are the smallest, ties to the
// smaller position, and lists their positions in order.
//
// It is a radix select from the top digit, with histograms that are counted by integer atomics in
// shared memory. So the counts, and with them the choice, do not depend on the order in which
// threads run.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda {

inline constexpr int kSelectThreads = 1024;
inline constexpr int kSelectWarps = kSelectThreads / 32;

// Maps floats to integers in reverse order; NaN comes first. Adding 0 makes both zeros equal.
__device__ inline uint32_t descending_bits(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? bits : ~(bits | 0x80000000U);
}

// The chosen keys are those below `key` and the first num_equal of those equal to it.
struct SelectThreshold {
  uint32_t key;
  int32_t num_equal;
};

class BlockSelect {
 public:
  static constexpr int kDigitBits = 11;
  static constexpr int kBins = 1 << kDigitBits;
  // Copies of the histogram, divided among the warps: most sums have few distinct leading digits,
  // and threads that count in the same bin wait for each other.
  static constexpr int kCopies = 4;

  struct Shared {
    uint32_t histogram[kCopies][kBins];
    uint32_t warp_counts[kSelectWarps];
    int32_t warp_below[kSelectWarps];
    int32_t warp_equal[kSelectWarps];
    uint32_t digit;
    uint32_t before;
  };

  __device__ explicit BlockSelect(Shared& shared) : shared_(shared) {}

  // Finds the `wanted` smallest of the keys key_of(i), 0 <= i < count; 0 < wanted <= count.
  template <typename KeyOf>
  __device__ SelectThreshold threshold(const KeyOf& key_of, int32_t count, int32_t wanted) {
    uint32_t prefix = 0;
    uint32_t rank = static_cast<uint32_t>(wanted);  // of the threshold among keys of the prefix
    for (int shift = 32; shift > 0;) {
      const int bits = min(kDigitBits, shift);
      const uint32_t above = shift == 32 ? 0U : ~0U << shift;
      shift -= bits;
      count_digits(key_of, count, prefix, above, shift, (1U << bits) - 1);
      find_digit(rank);
      prefix |= shared_.digit << shift;
      rank -= shared_.before;
      __syncthreads();
    }
    return {prefix, static_cast<int32_t>(rank)};
  }

  // Calls emit(place, position) for the chosen positions; places ascend with positions, from 0.
  template <typename KeyOf, typename Emit>
  __device__ void collect(const KeyOf& key_of, int32_t count, SelectThreshold threshold,
                          const Emit& emit) {
    // Each warp takes a range that is a multiple of 32, so that ballots give the order within it.
    const int32_t length = (count + kSelectThreads - 1) / kSelectThreads * 32;
    const int32_t begin = min(warp() * length, count);
    const int32_t end = min(begin + length, count);
    count_range(key_of, begin, end, threshold.key);
    int32_t place = 0;
    int32_t equal = 0;
    for (int w = 0; w < warp(); ++w) {
      place += shared_.warp_below[w];
      equal += shared_.warp_equal[w];
    }
    place += min(equal, threshold.num_equal);
    for_each_key<32>(key_of, begin + lane(), end, [&](int32_t position, uint32_t key) {
      const bool is_equal = position < end && key == threshold.key;
      const uint32_t equals = __ballot_sync(~0U, is_equal);
      const bool takes =
          (position < end && key < threshold.key) ||
          (is_equal && equal + __popc(equals & lanes_before()) < threshold.num_equal);
      const uint32_t taken = __ballot_sync(~0U, takes);
      if (takes) emit(place + __popc(taken & lanes_before()), position);
      place += __popc(taken);
      equal += __popc(equals);
    });
    __syncthreads();
  }

  // Finds runs among `count` elements; starts(i) says whether i begins one. Calls emit_start(run,
  // i) and emit_end(run, i) for the runs in order, and returns their number.
  template <typename Starts, typename EmitStart, typename EmitEnd>
  __device__ int32_t collect_runs(int32_t count, const Starts& starts, const EmitStart& emit_start,
                                  const EmitEnd& emit_end) {
    int32_t num_runs = 0;
    for (int32_t first = 0; first < count; first += kSelectThreads) {
      const int32_t i = first + static_cast<int32_t>(threadIdx.x);
      const bool is_start = i < count && starts(i);
      const uint32_t ballot = __ballot_sync(~0U, is_start);
      if (lane() == 0) shared_.warp_counts[warp()] = __popc(ballot);
      __syncthreads();
      int32_t run = num_runs + __popc(ballot & (lanes_before() | 1U << lane())) - 1;
      for (int w = 0; w < kSelectWarps; ++w) {
        const auto in_warp = static_cast<int32_t>(shared_.warp_counts[w]);
        if (w < warp()) run += in_warp;
        num_runs += in_warp;
      }
      if (is_start) emit_start(run, i);
      if (i < count && (i + 1 == count || starts(i + 1))) emit_end(run, i);
      __syncthreads();
    }
    return num_runs;
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static uint32_t lanes_before() { return (1U << lane()) - 1; }

  // Calls use(i, key) for i = begin, begin + kStep, ...; keys are read in batches, so that a thread
  // does not wait for each. All lanes of a warp make the same number of calls, some with i past
  // `end`.
  template <int kStep, typename KeyOf, typename Use>
  __device__ static void for_each_key(const KeyOf& key_of, int32_t begin, int32_t end,
                                      const Use& use) {
    constexpr int kBatch = 8;
    const int32_t warp_begin = begin - lane();
    for (int32_t first = 0; warp_begin + first < end; first += kBatch * kStep) {
      uint32_t keys[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = begin + first + b * kStep;
        keys[b] = i < end ? key_of(i) : 0;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) use(begin + first + b * kStep, keys[b]);
    }
  }

  template <typename KeyOf>
  __device__ void count_digits(const KeyOf& key_of, int32_t count, uint32_t prefix, uint32_t above,
                               int shift, uint32_t mask) {
    for (int i = static_cast<int>(threadIdx.x); i < kCopies * kBins; i += kSelectThreads) {
      shared_.histogram[0][i] = 0;
    }
    __syncthreads();
    uint32_t* histogram = shared_.histogram[warp() % kCopies];
    for_each_key<kSelectThreads>(key_of, static_cast<int32_t>(threadIdx.x), count,
                                 [&](int32_t i, uint32_t key) {
                                   if (i < count && (key & above) == prefix) {
                                     atomicAdd(&histogram[key >> shift & mask], 1U);
                                   }
                                 });
    __syncthreads();
  }

  // Finds the digit whose bin holds the rank-th key, and the number of keys in the bins before it.
  __device__ void find_digit(uint32_t rank) {
    static_assert(kBins == 2 * kSelectThreads);
    uint32_t bins[2];
    for (int i = 0; i < 2; ++i) {
      const int bin = 2 * static_cast<int>(threadIdx.x) + i;
      bins[i] = 0;
      for (const auto& copy : shared_.histogram) bins[i] += copy[bin];
    }
    uint32_t sum = bins[0] + bins[1];  // becomes that of the warp's threads up to this one
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_up_sync(~0U, sum, distance);
      if (lane() >= distance) sum += other;
    }
    if (lane() == 31) shared_.warp_counts[warp()] = sum;
    __syncthreads();
    uint32_t before = sum - bins[0] - bins[1];
    for (int w = 0; w < warp(); ++w) before += shared_.warp_counts[w];
    for (int i = 0; i < 2; ++i) {
      if (before < rank && rank <= before + bins[i]) {
        shared_.digit = 2 * threadIdx.x + i;
        shared_.before = before;
      }
      before += bins[i];
    }
    __syncthreads();
  }

  template <typename KeyOf>
  __device__ void count_range(const KeyOf& key_of, int32_t begin, int32_t end, uint32_t threshold) {
    int32_t below = 0;
    int32_t equal = 0;
    for_each_key<32>(key_of, begin + lane(), end, [&](int32_t position, uint32_t key) {
      below += position < end && key < threshold;
      equal += position < end && key == threshold;
    });
    below = __reduce_add_sync(~0U, below);
    equal = __reduce_add_sync(~0U, equal);
    if (lane() == 0) {
      shared_.warp_below[warp()] = below;
      shared_.warp_equal[warp()] = equal;
    }
    __syncthreads();
  }

  Shared& shared_;
};

}  // namespace millrace::kernels::cuda
