// SPDX-License-Identifier: Apache-2.0
// Vertical-slash lists: a block per head and list.
#include "kernels/cuda/sm90/estimation/vertical_slash/vertical_slash.h"

#include "kernels/api/estimation.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/vertical_slash/block_select.cuh"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cuda {
namespace {

// Positions below num_forced before all others.
struct KeyOfSum {
  const float* sums;
  int32_t num_forced;

  __device__ uint32_t operator()(int32_t i) const {
    return i < num_forced ? 0U : descending_bits(sums[i]);
  }
};

__device__ void choose_columns(const VerticalSlashArguments& arguments, int32_t number,
                               BlockSelect& select) {
  const VerticalSlashHead head = arguments.heads[number];
  const auto num_tokens = static_cast<int32_t>(arguments.num_tokens);
  const KeyOfSum key_of = {arguments.column_sums + number * arguments.num_tokens, kForcedColumns};
  int32_t* columns =
      arguments.index.columns + int64_t{head.head} * arguments.index.shape.max_columns;
  const SelectThreshold threshold = select.threshold(key_of, num_tokens, head.verticals);
  select.collect(key_of, num_tokens, threshold,
                 [&](int32_t place, int32_t position) { columns[place] = position; });
  if (threadIdx.x == 0) arguments.index.num_columns[head.head] = head.verticals;
}

// Offsets, ascending, as bands. Two offsets at most kTileRows apart share a band: a full tile's key
// ranges of the two meet or overlap, so the offsets between them come for free.
__device__ int32_t merge_offsets(const int32_t* offsets, int32_t count, Band* bands,
                                 BlockSelect& select) {
  const auto starts = [&](int32_t i) { return i == 0 || offsets[i] - offsets[i - 1] > kTileRows; };
  return select.collect_runs(
      count, starts, [&](int32_t band, int32_t i) { bands[band].lo = offsets[i]; },
      [&](int32_t band, int32_t i) { bands[band].hi = offsets[i]; });
}

// Closes the num_closed smallest gaps, ties to the smaller offset. Bands only grow, so no offset is
// lost.
__device__ void close_gaps(const Band* bands, int32_t count, int32_t num_closed,
                           int32_t* closes_gap, Band* out, BlockSelect& select) {
  // As on the CPU, gaps that differ by less than 2^-24 of themselves may be equal as floats.
  const auto key_of = [&](int32_t i) {
    return descending_bits(-static_cast<float>(bands[i + 1].lo - bands[i].hi));
  };
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kSelectThreads) {
    closes_gap[i] = 0;
  }
  const SelectThreshold threshold = select.threshold(key_of, count - 1, num_closed);
  select.collect(key_of, count - 1, threshold, [&](int32_t, int32_t gap) { closes_gap[gap] = 1; });
  const auto starts = [&](int32_t i) { return i == 0 || closes_gap[i - 1] == 0; };
  select.collect_runs(
      count, starts, [&](int32_t band, int32_t i) { out[band].lo = bands[i].lo; },
      [&](int32_t band, int32_t i) { out[band].hi = bands[i].hi; });
}

__device__ void choose_bands(const VerticalSlashArguments& arguments, int32_t number,
                             BlockSelect& select) {
  const VerticalSlashHead head = arguments.heads[number];
  const auto num_tokens = static_cast<int32_t>(arguments.num_tokens);
  const KeyOfSum key_of = {arguments.diagonal_sums + number * arguments.num_tokens, kForcedOffsets};
  int32_t* offsets = arguments.work.offsets + head.first_slash;
  const SelectThreshold threshold = select.threshold(key_of, num_tokens, head.slashes);
  select.collect(key_of, num_tokens, threshold,
                 [&](int32_t place, int32_t position) { offsets[place] = position; });

  const int32_t capacity = arguments.index.shape.max_bands;
  Band* out = arguments.index.bands + int64_t{head.head} * capacity;
  Band* bands = arguments.work.bands + head.first_slash;
  const int32_t num_bands = merge_offsets(offsets, head.slashes, bands, select);
  if (num_bands > capacity) {
    close_gaps(bands, num_bands, num_bands - capacity, arguments.work.closes_gap + head.first_slash,
               out, select);
  } else {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_bands; i += kSelectThreads) {
      out[i] = bands[i];
    }
  }
  if (threadIdx.x == 0) arguments.index.num_bands[head.head] = min(num_bands, capacity);
}

__global__ void __launch_bounds__(kSelectThreads)
    vertical_slash_kernel(const __grid_constant__ VerticalSlashArguments arguments) {
  __shared__ BlockSelect::Shared shared;
  BlockSelect select(shared);
  const auto number = static_cast<int32_t>(blockIdx.x);
  if (blockIdx.y == 0) {
    choose_bands(arguments, number, select);
  } else {
    choose_columns(arguments, number, select);
  }
}

}  // namespace

void launch_vertical_slash(const VerticalSlashArguments& arguments, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.num_heads), 2);
  vertical_slash_kernel<<<grid, kSelectThreads, 0, stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
