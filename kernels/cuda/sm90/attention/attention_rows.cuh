// SPDX-License-Identifier: Apache-2.0
// One row tile of the attention kernel: a warpgroup that keeps 64 queries and their output in
// registers, and takes keys and values from the ring. Softmax is online (Milakov & Gimelshein 2018)
// in powers of two; the product of the next keys is issued before that of the last values, so that
// the tensor cores work while this warpgroup computes exponentials (FlashAttention-3, section 3.2).
#pragma once

#include "common/dtype.h"
#include "kernels/cuda/sm90/attention/attention_ring.cuh"
#include "kernels/cuda/sm90/ptx/named_barrier.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"
#include "kernels/cuda/sm90/ptx/wgmma.cuh"

namespace millrace::kernels::cuda {

__device__ inline float log_sum_exp(float base_log2, float sum) {
  constexpr float kLn2 = 0.69314718055994531F;
  return sum > 0 ? (base_log2 + log2f(sum)) * kLn2 : -INFINITY;
}

// What a head's sink adds to the sum of a row, relative to base. If base is far below the sink, it
// is infinity, and the row's output becomes zero.
__device__ inline float sink_weight(const float* sinks, int32_t head, float base_log2) {
  constexpr float kLog2E = 1.44269504088896341F;
  return sinks == nullptr ? 0.0F : exp2f(sinks[head] * kLog2E - base_log2);
}

// How far the weights of a row may rise above the base they are relative to, as a power of two, and
// how far above 1 the largest begins when the base is set. Weights keep their relative precision in
// bfloat16 however small. In float16 they lose it below 2^-14 and vanish below 2^-25, and a million
// keys of such weights would be missed: there the largest begin near the upper end of the range.
template <typename Element>
struct WeightRange {
  static constexpr float kSlackLog2 = 8.0F;
  static constexpr float kLiftLog2 = 0.0F;
};
template <>
struct WeightRange<Float16> {
  static constexpr float kSlackLog2 = 15.0F;
  static constexpr float kLiftLog2 = 7.0F;
};

template <typename Element, int kHeadDim>
class AttentionConsumer {
  using Shared = AttentionShared<kHeadDim>;
  static constexpr int kScores = kSlotKeys / 2;  // of a slot, in a thread
  static constexpr int kOutputs = kHeadDim / 2;
  static constexpr int kNone = -1;

 public:
  __device__ AttentionConsumer(Shared& shared, const AttentionArguments& arguments, int tile)
      : shared_(shared), arguments_(arguments), tile_(tile) {}

  __device__ void run() {
    for (;;) {
      wait_slot();
      const WorkItem item = shared_.slots[cursor_.stage].item;
      release();
      cursor_.advance();
      if (ptx::uniform(item.head) == kNoHead) return;
      start_item(item);
      run_item();
      finish_item();
    }
  }

 private:
  __device__ void start_item(const WorkItem& item) {
    const int first_row = tile_ * static_cast<int>(kTileRows);
    head_ = item.head;
    position_ = item.group.position + first_row;
    num_rows_ = item.group.num_rows - first_row;
    local_row_ = item.group.local_row + first_row;
    part_ = item.group.part;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out_[i] = 0;
    base_[0] = base_[1] = -INFINITY;
    row_sum_[0] = row_sum_[1] = 0;
    share_queries();
  }

  // Each warp copies the 16 rows that its part of the products reads, 16 bytes per lane, into the
  // swizzled panels.
  __device__ void share_queries() {
    constexpr int kChunks = kHeadDim / 8;
    constexpr int kRowsAtOnce = kWarp / kChunks;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int chunk = lane % kChunks;
    const int first = first_row_ - lane / 4;
    auto* q = reinterpret_cast<std::byte*>(shared_.q[tile_]);
#pragma unroll
    for (int i = 0; i < 16; i += kRowsAtOnce) {
      const int row = first + i + lane / kChunks;
      const uint4 values =
          row < num_rows_
              ? *reinterpret_cast<const uint4*>(arguments_.q + row_offset(row) + chunk * 8)
              : uint4{};
      *reinterpret_cast<uint4*>(q + chunk / 8 * (kTileRows * 128) + row * 128 +
                                (chunk ^ row) % 8 * 16) = values;
    }
    ptx::fence_async_shared();
    ptx::synchronise_warpgroup(tile_);
  }

  // Element offset of the tile's row in Q and in the output.
  __device__ int64_t row_offset(int row) const {
    return (int64_t{local_row_ + row} * arguments_.num_query_heads + head_) * kHeadDim;
  }

  // A slot is held until its values are added, which happens while the scores of the next one are
  // computed.
  __device__ void run_item() {
    int pending = kNone;
    int distance = 0;  // slots from the pending one to the cursor
    for (;;) {
      wait_slot();
      const TileTask task = shared_.slots[cursor_.stage].tasks[tile_];
      const Action action = ptx::uniform(task.action);
      const int pass_over = ptx::uniform(task.pass_over);
      if (action == Action::kMarker) break;
      if (action == Action::kSkip) {
        release();
      } else {
        if (action == Action::kGather) ptx::fence_async_shared();
        if (pending != kNone) {
          take_keys<true>(action, pending);
        } else {
          take_keys<false>(action, pending);
        }
        pending = cursor_.stage;
        pending_parity_ = cursor_.parity;
        pending_is_gathered_ = action == Action::kGather;
        distance = 0;
      }
      distance += 1 + pass_over;
      // The next slot of the tile's may need the buffer of the pending one.
      if (pending != kNone && distance >= Shared::kStages) {
        add_values(pending);
        pending = kNone;
      }
      cursor_.advance();
      for (int i = 0; i < pass_over; ++i) {
        wait_slot();
        release();
        cursor_.advance();
      }
    }
    if (pending != kNone) add_values(pending);
  }

  // Scores and weights of the slot at the cursor; meanwhile the pending values are added.
  template <bool kPending>
  __device__ void take_keys(Action action, int pending) {
    if constexpr (kPending) wait_values(pending);
    ptx::fence_operand(scores_);
    ptx::fence_operand(weights_);
    ptx::fence_operand(out_);
    ptx::wgmma_fence();
    const uint64_t mask = shared_.slots[cursor_.stage].mask[tile_];
    const int32_t first_key = shared_.slots[cursor_.stage].first_key;
    const int32_t last_key = shared_.slots[cursor_.stage].last_key;
    issue_scores(cursor_.stage);
    if constexpr (kPending) {
      issue_values(pending);
      ptx::wgmma_wait<1>();
    } else {
      ptx::wgmma_wait<0>();
    }
    ptx::fence_operand(scores_);
    if constexpr (Shared::kApart) ptx::barrier_arrive(&shared_.empty[cursor_.stage]);
    if (action != Action::kWhole) apply_mask(action, mask, first_key, last_key);
    float rescale[2];
    const bool grown = online_softmax(rescale);
    ptx::fence_operand(scores_);  // the exponentials are computed before the wait, not after it
    if constexpr (kPending) {
      ptx::wgmma_wait<0>();
      release_values(pending);
    }
    ptx::fence_operand(out_);
    ptx::fence_operand(weights_);
    if (grown) rescale_outputs(rescale);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      weights_[i] = ptx::pack<Element>(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  __device__ void issue_scores(int stage) {
    const uint64_t k =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.k[stage])), 16);
    const uint64_t q = ptx::matrix_descriptor(ptx::shared_address(shared_.q[tile_]), 16);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t offset = (step / 4 * (kSlotKeys * 128) + step % 4 * 32) / 16;
      ptx::wgmma_shared_64<Element>(scores_, q + offset, k + offset, step > 0);
    }
    ptx::wgmma_commit();
  }

  __device__ void issue_values(int stage) {
    const uint64_t v = ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.v[stage])),
                                              kSlotKeys * 128);
#pragma unroll
    for (int step = 0; step < kSlotKeys / 16; ++step) {
      ptx::Wgmma<Element, kHeadDim, true>::issue(out_, weights_ + 4 * step,
                                                 v + step * (16 * 128) / 16, true);
    }
    ptx::wgmma_commit();
  }

  __device__ void add_values(int stage) {
    wait_values(stage);
    ptx::fence_operand(weights_);
    ptx::fence_operand(out_);
    ptx::wgmma_fence();
    issue_values(stage);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(out_);
    release_values(stage);
  }

  __device__ void apply_mask(Action action, uint64_t mask, int32_t first_key, int32_t last_key) {
    // A band seldom ends in both halves.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto keys = static_cast<uint32_t>(mask >> (32 * half));
      if (ptx::uniform(keys) == ~0u) continue;
      const uint32_t own = keys >> (2 * pair_);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if ((own >> (8 * j + e) & 1) != 0) continue;
          float* pair = scores_ + 16 * half + 4 * j + e;
          pair[0] = pair[2] = -INFINITY;
        }
      }
    }
    if (action == Action::kMasked) {
      if (first_key + kSlotKeys - 1 > position_) {
        apply_causality([&](int column) { return first_key + column; });
      }
      // The first key that the tile's last row sees.
      const int32_t first_seen = position_ + static_cast<int>(kTileRows) - arguments_.window;
      if (first_key < first_seen) apply_window(first_key);
    } else if (last_key > position_) {
      const int32_t* columns = arguments_.index.columns +
                               int64_t{head_} * arguments_.index.shape.max_columns + first_key;
      const int32_t last = 63 - __clzll(static_cast<long long>(mask));
      apply_causality([&](int column) { return column <= last ? columns[column] : 0; });
    }
  }

  template <typename KeyOf>
  __device__ void apply_causality(KeyOf&& key_of) {
    const int position[2] = {position_ + first_row_, position_ + first_row_ + 8};
#pragma unroll
    for (int j = 0; j < kSlotKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int32_t key = key_of(8 * j + 2 * pair_ + e);
        if (key > position[0]) scores_[4 * j + e] = -INFINITY;
        if (key > position[1]) scores_[4 * j + 2 + e] = -INFINITY;
      }
    }
  }

  __device__ void apply_window(int32_t first_key) {
    // Columns of the slot up to this one are no longer seen, by the two rows.
    const int hidden = position_ + first_row_ - arguments_.window - first_key;
#pragma unroll
    for (int j = 0; j < kSlotKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * j + 2 * pair_ + e;
        if (column <= hidden) scores_[4 * j + e] = -INFINITY;
        if (column <= hidden + 8) scores_[4 * j + 2 + e] = -INFINITY;
      }
    }
  }

  // Turns scores into weights, powers of two relative to a base. If it returns true, earlier sums
  // must be multiplied by `rescale`. The base follows the largest score only when weights would
  // otherwise exceed their range: they stay far inside float32, and the outputs are seldom rescaled
  // (as in FlashAttention-4). The warp decides as one, so that the rescaling is no divergent
  // branch.
  __device__ bool online_softmax(float (&rescale)[2]) {
    constexpr float kSlackLog2 = WeightRange<Element>::kSlackLog2;
    float row_max[2];
    find_row_max(row_max);
    const bool grown =
        __any_sync(~0u, row_max[0] > base_[0] + kSlackLog2 || row_max[1] > base_[1] + kSlackLog2);
    rescale[0] = rescale[1] = 1;
    if (grown) raise_bases(row_max, rescale);
    exponentiate();
    return grown;
  }

  // The maxima of both rows, over the four threads that share them, in powers of two.
  __device__ void find_row_max(float (&row_max)[2]) const {
    // In four chains per row: a single one would be limited by the latency of its steps.
    constexpr int kChains = 4;
    float chains[2][kChains];
#pragma unroll
    for (int j = 0; j < kSlotKeys / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& chain = chains[half][j % kChains];
        const float more = fmaxf(scores_[4 * j + 2 * half], scores_[4 * j + 2 * half + 1]);
        chain = j < kChains ? more : fmaxf(chain, more);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_max[half] =
          fmaxf(fmaxf(chains[half][0], chains[half][1]), fmaxf(chains[half][2], chains[half][3]));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_max[half] = fmaxf(row_max[half], __shfl_xor_sync(~0u, row_max[half], 1));
      row_max[half] =
          fmaxf(row_max[half], __shfl_xor_sync(~0u, row_max[half], 2)) * arguments_.scale_log2;
    }
  }

  __device__ void raise_bases(const float (&row_max)[2], float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = fmaxf(base_[half], row_max[half] - WeightRange<Element>::kLiftLog2);
      // A row that has seen nothing yet: any finite number keeps NaN away.
      rescale[half] = base == -INFINITY ? 1 : ptx::exp2_approx(base_[half] - base);
      base_[half] = base;
      row_sum_[half] *= rescale[half];
    }
  }

  __device__ void exponentiate() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = base_[half] == -INFINITY ? 0 : base_[half];
      float sums[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kSlotKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores_[4 * j + 2 * half + e];
          score = ptx::exp2_approx(fmaf(score, arguments_.scale_log2, -base));
          sums[e] += score;
        }
      }
      row_sum_[half] += sums[0] + sums[1];
    }
  }

  __device__ void rescale_outputs(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out_[i] *= rescale[i / 2 % 2];
  }

  __device__ void finish_item() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = row_sum_[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = first_row_ + half * 8;
      if (row >= num_rows_) continue;
      if (part_ == kWhole) {
        write_row(half, row, sum);
      } else {
        write_part(half, row, sum);
      }
    }
  }

  __device__ void write_row(int half, int row, float sum) {
    const float inverse =
        sum > 0 ? 1.0F / (sum + sink_weight(arguments_.sinks, head_, base_[half])) : 0.0F;
    uint16_t* out = arguments_.out + row_offset(row) + 2 * pair_;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      *reinterpret_cast<uint32_t*>(out + 8 * j) = ptx::pack_finite<Element>(
          out_[4 * j + 2 * half] * inverse, out_[4 * j + 2 * half + 1] * inverse);
    }
    if (arguments_.lse != nullptr && pair_ == 0) {
      arguments_.lse[head_ * arguments_.num_rows + local_row_ + row] =
          log_sum_exp(base_[half], sum);
    }
  }

  __device__ void write_part(int half, int row, float sum) {
    const int64_t place = (int64_t{head_} * arguments_.num_parts + part_) * kMaxGroupRows +
                          tile_ * static_cast<int>(kTileRows) + row;
    float* out = arguments_.part_out + place * kHeadDim + 2 * pair_;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      *reinterpret_cast<float2*>(out + 8 * j) =
          make_float2(out_[4 * j + 2 * half], out_[4 * j + 2 * half + 1]);
    }
    if (pair_ == 0) arguments_.part_statistics[place] = {.base = base_[half], .sum = sum};
  }

  __device__ void wait_slot() {
    ptx::barrier_wait(&shared_.full[cursor_.stage], cursor_.parity);
  }

  // Waits for the values of the pending slot, if they have a barrier of their own.
  __device__ void wait_values(int stage) {
    if constexpr (Shared::kApart) {
      ptx::barrier_wait(&shared_.full_values[stage], pending_parity_);
      if (pending_is_gathered_) ptx::fence_async_shared();
    }
  }

  // Releases the slot at the cursor, of which the tile takes nothing. Its keys may come before all
  // tiles are done with the values of the previous use of the slot. So it first waits for its own
  // values: otherwise its arrival would count as one for the previous values.
  __device__ void release() {
    ptx::barrier_arrive(&shared_.empty[cursor_.stage]);
    if constexpr (Shared::kApart) {
      ptx::barrier_wait(&shared_.full_values[cursor_.stage], cursor_.parity);
      ptx::barrier_arrive(&shared_.empty_values[cursor_.stage]);
    }
  }
  // Releases the values of a slot whose keys were released separately.
  __device__ void release_values(int stage) {
    ptx::barrier_arrive(Shared::kApart ? &shared_.empty_values[stage] : &shared_.empty[stage]);
  }

  Shared& shared_;
  const AttentionArguments& arguments_;
  const int tile_;
  // This thread's place in the fragments of kernels/cuda/sm90/ptx/wgmma.cuh.
  const int first_row_ =
      static_cast<int>(threadIdx.x % kWarpgroup / kWarp * 16 + threadIdx.x % kWarp / 4);
  const int pair_ = static_cast<int>(threadIdx.x % 4);
  RingCursor<Shared::kStages> cursor_;
  // Used if keys and values have separate barriers.
  uint32_t pending_parity_ = 0;
  bool pending_is_gathered_ = false;
  int32_t head_ = 0;
  int32_t position_ = 0;
  int32_t num_rows_ = 0;  // 64 or more: all of the tile; 0 or less: none
  int32_t local_row_ = 0;
  int32_t part_ = kWhole;
  uint32_t weights_[kScores / 2];
  float scores_[kScores];
  float out_[kOutputs];
  float base_[2];  // in powers of two, what the weights of a row are relative to
  float row_sum_[2];
};

}  // namespace millrace::kernels::cuda
