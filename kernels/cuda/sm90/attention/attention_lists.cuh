// SPDX-License-Identifier: Apache-2.0
// The keys that the lists of a head give a row tile, as bits: kernels/index/coverage.h on the
// device.
#pragma once

#include "kernels/cuda/sm90/attention/attention_ring.cuh"

namespace millrace::kernels::cuda {

// A mask of bits [begin, end), clipped to the slot.
__device__ inline uint64_t interval_mask(int32_t begin, int32_t end) {
  begin = max(begin, 0);
  end = min(end, kSlotKeys);
  return begin < end ? (~uint64_t{0} >> (kSlotKeys - (end - begin))) << begin : 0;
}

// The first number in [0, count) for which `holds` is false; it must be true for all before it.
template <typename Predicate>
__device__ inline int32_t partition_point(int32_t count, Predicate&& holds) {
  int32_t first = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (holds(first + half)) {
      first += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return first;
}

// Lists of one head, in registers of every lane.
struct HeadLists {
  const Band* bands;
  int32_t num_bands;
  const int32_t* columns;
  int32_t num_columns;

  // `near` belongs to this warp.
  __device__ static HeadLists of(const AttentionArguments& arguments, int32_t head,
                                 Band (&near)[kNearBands]) {
    const IndexView& index = arguments.index;
    HeadLists lists = {.bands = index.bands + int64_t{head} * index.shape.max_bands,
                       .num_bands = index.num_bands[head],
                       .columns = index.columns + int64_t{head} * index.shape.max_columns,
                       .num_columns = index.num_columns[head]};
    if (lists.num_bands <= kNearBands) {
      __syncwarp();
      for (auto i = static_cast<int32_t>(threadIdx.x % kWarp); i < lists.num_bands; i += kWarp) {
        near[i] = lists.bands[i];
      }
      __syncwarp();
      lists.bands = near;
    }
    return lists;
  }

  // Keys [first_key, first_key + 64) that the bands and columns give a tile.
  __device__ uint64_t mask(const TileRows& rows, int32_t first_key) const {
    uint64_t bits = 0;
    int32_t i = partition_point(
        num_bands, [&](int32_t b) { return bands[b].hi <= rows.position - first_key - kSlotKeys; });
    for (; i < num_bands && bands[i].lo < rows.end() - first_key; ++i) {
      bits |= interval_mask(rows.position - bands[i].hi - first_key,
                            rows.end() - bands[i].lo - first_key);
    }
    i = partition_point(num_columns, [&](int32_t c) { return columns[c] < first_key; });
    for (; i < num_columns && columns[i] < first_key + kSlotKeys; ++i) {
      bits |= uint64_t{1} << (columns[i] - first_key);
    }
    return bits;
  }

  // Whether a band gives the tile this key.
  __device__ bool in_band(const TileRows& rows, int32_t key) const {
    const int32_t i =
        partition_point(num_bands, [&](int32_t b) { return bands[b].hi < rows.position - key; });
    return i < num_bands && bands[i].lo < rows.end() - key;
  }
};

// Adds the sum of `pairs` over the lanes of a warp to the count of covered pairs of the query head.
__device__ inline void add_pairs(const AttentionArguments& arguments, int32_t head, int64_t pairs) {
  if (arguments.covered_pairs == nullptr) return;
#pragma unroll
  for (int delta = kWarp / 2; delta > 0; delta /= 2) pairs += __shfl_xor_sync(~0u, pairs, delta);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&arguments.covered_pairs[head], static_cast<unsigned long long>(pairs));
  }
}

}  // namespace millrace::kernels::cuda
