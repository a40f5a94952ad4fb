// SPDX-License-Identifier: Apache-2.0
// Finds where a running count of keys, from the largest on, passes a target, without sorting: a
// team of warps keeps a row of keys in registers and halves the interval that holds the place,
// counting the keys above it, until few keys are left.
//
// Keys are unsigned and rise with the values they stand for; 0 means no key.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda {

// Keys in [low, high). 64 bits: high may be one more than any key.
struct Interval {
  uint64_t low;
  uint64_t high;
  int32_t count;
};

// Maps float32 scores to integers that rise with them. NaN is the largest; both zeros are equal.
__device__ inline uint32_t ascending_bits(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float value_of_ascending(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

// Scores are spread evenly, but around zero their bits are not. So intervals are halved by value,
// and by bits only if that makes no progress.
__device__ inline uint64_t middle_of(const Interval& left, int step) {
  constexpr int kMaxSteps = 12;
  const float low = value_of_ascending(static_cast<uint32_t>(left.low));
  const float high = value_of_ascending(static_cast<uint32_t>(left.high - 1));
  const uint64_t middle = ascending_bits(0.5F * low + 0.5F * high);
  const bool is_inside = middle > left.low && middle < left.high;
  return step < kMaxSteps && is_inside ? middle : left.low + (left.high - left.low) / 2;
}

// Shared memory through which the warps of a team communicate.
template <int kWarps>
struct TeamShared {
  int32_t counts[kWarps];
  uint32_t smallest[kWarps];
};

// A team of kWarps warps of a block (all of its warps, if more than one) with kValues keys per
// thread.
template <int kWarps, int kValues>
class KeySearch {
 public:
  static constexpr int kThreads = 32 * kWarps;

  __device__ KeySearch(TeamShared<kWarps>& shared, int thread) : shared_(shared), thread_(thread) {}

  __device__ static void synchronise() {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // Calls use(v) for the values of this thread if the team has num_keys places: value v is at place
  // v * kThreads + thread. The rest of the last step of kStep values is visited too.
  template <typename Use>
  __device__ static void for_each_value(int32_t num_keys, const Use& use) {
    constexpr int kStep = 8;
    static_assert(kValues % kStep == 0);
#pragma unroll
    for (int first = 0; first < kValues; first += kStep) {
      if (first * kThreads < num_keys) {
#pragma unroll
        for (int v = first; v < first + kStep; ++v) use(v);
      }
    }
  }

  // Loads key_of(v) for num_keys keys; 0 past their end.
  template <typename KeyOf>
  __device__ void load(int32_t num_keys, const KeyOf& key_of) {
    num_keys_ = num_keys;
    for_each_value(num_keys, [&](int v) { keys_[v] = key_of(v); });
  }
  template <typename Change>
  __device__ void change(const Change& change) {
    for_each_value(num_keys_, [&](int v) { keys_[v] = change(v, keys_[v]); });
  }

  __device__ uint32_t key(int v) const {
    return keys_[v];
  }
  __device__ const Interval& left() const {
    return left_;
  }
  // The number of keys above left().
  __device__ int32_t above_left() const {
    return above_left_;
  }
  // The number of this thread's keys in left().
  __device__ int32_t mine_left() const {
    return mine_low_ - mine_high_;
  }

  // Starts with the interval `all`, in which all keys lie, `mine` of them this thread's.
  __device__ void start(const Interval& all, int32_t mine) {
    left_ = all;
    above_left_ = 0;
    mine_low_ = mine;
    mine_high_ = 0;
  }

  // Narrows left() until it has at most `max_count` keys, or a single value. The count of keys from
  // above reaches `wanted` within it.
  __device__ void narrow(int32_t max_count, int32_t wanted) {
    for (int step = 0; left_.count > max_count && left_.high - left_.low > 1; ++step) {
      split(middle_of(left_, step), wanted);
    }
  }

  // The interval from the smallest to the largest of `count` keys.
  __device__ Interval extent(int32_t count) {
    uint32_t smallest = ~0U;
    uint32_t largest = 0;
    for_each_value(num_keys_, [&](int v) {
      // Subtracting one turns 0, no key, into the largest number.
      smallest = min(smallest, keys_[v] - 1);
      largest = max(largest, keys_[v]);
    });
    smallest = __reduce_min_sync(~0U, smallest);
    largest = __reduce_max_sync(~0U, largest);
    if constexpr (kWarps > 1) {
      if (thread_ % 32 == 0) {
        shared_.smallest[thread_ / 32] = smallest;
        shared_.counts[thread_ / 32] = static_cast<int32_t>(largest);
      }
      synchronise();
      for (int warp = 0; warp < kWarps; ++warp) {
        smallest = min(smallest, shared_.smallest[warp]);
        largest = max(largest, static_cast<uint32_t>(shared_.counts[warp]));
      }
      synchronise();
    }
    return {.low = uint64_t{smallest} + 1, .high = uint64_t{largest} + 1, .count = count};
  }

  // The sum of `count` over the threads before this one.
  __device__ int32_t count_before(int32_t count) {
    int32_t sum = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t other = __shfl_up_sync(~0U, sum, distance);
      if (thread_ % 32 >= distance) sum += other;
    }
    if constexpr (kWarps > 1) {
      if (thread_ % 32 == 31) shared_.counts[thread_ / 32] = sum;
      synchronise();
      for (int warp = 0; warp < thread_ / 32; ++warp) sum += shared_.counts[warp];
      synchronise();
    }
    return sum - count;
  }

 private:
  // Moves one end of left() to `pivot`.
  __device__ void split(uint64_t pivot, int32_t wanted) {
    int32_t mine = 0;
    for_each_value(num_keys_, [&](int v) { mine += keys_[v] >= static_cast<uint32_t>(pivot); });
    const int32_t upper = total(mine);
    if (upper >= wanted) {
      left_.low = pivot;
      left_.count = upper - above_left_;
      mine_low_ = mine;
    } else {
      left_.high = pivot;
      left_.count -= upper - above_left_;
      above_left_ = upper;
      mine_high_ = mine;
    }
  }

  __device__ int32_t total(int32_t count) {
    count = __reduce_add_sync(~0U, count);
    if constexpr (kWarps > 1) {
      if (thread_ % 32 == 0) shared_.counts[thread_ / 32] = count;
      synchronise();
      count = 0;
      for (int warp = 0; warp < kWarps; ++warp) count += shared_.counts[warp];
      synchronise();
    }
    return count;
  }

  TeamShared<kWarps>& shared_;
  int thread_;
  int32_t num_keys_ = 0;
  Interval left_ = {};
  int32_t above_left_ = 0;
  int32_t mine_low_ = 0;
  int32_t mine_high_ = 0;
  uint32_t keys_[kValues] = {};
};

}  // namespace millrace::kernels::cuda
