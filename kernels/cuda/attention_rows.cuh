// One row tile of the attention kernel: a warpgroup that keeps 64 queries and their output in
// registers, and takes keys and values from the ring. Softmax is online (Milakov & Gimelshein 2018)
// in powers of two; the product of the next keys is issued before that of the last values, so that
// the tensor cores work while this warpgroup computes exponentials (FlashAttention-3, section 3.2).
#pragma once

#include "kernels/cuda/attention_ring.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace millrace::kernels::cuda {

inline constexpr float kLn2 = 0.69314718055994531F;

template <int kHeadDim>
class AttentionConsumer {
  using Shared = AttentionShared<kHeadDim>;
  static constexpr int kScores = kSlotKeys / 2;  // registers a thread
  static constexpr int kOutputs = kHeadDim / 2;

 public:
  __device__ AttentionConsumer(Shared& shared, const AttentionArguments& arguments, int tile)
      : shared_(shared), arguments_(arguments), tile_(tile) {}

  __device__ void run() {
    for (;;) {
      const Slot& slot = wait_slot();
      const auto kind = static_cast<SlotKind>(uniform(static_cast<int32_t>(slot.kind)));
      const int32_t item = uniform(slot.item);
      release(cursor_.stage);
      cursor_.advance();
      if (kind == SlotKind::kStop) return;
      start_item(item);
      run_item();
      finish_item();
    }
  }

 private:
  __device__ void start_item(int32_t item) {
    head_ = item / arguments_.num_groups;
    const TileGroup group = arguments_.groups[item % arguments_.num_groups];
    const TileRows rows(group, tile_);
    position_ = rows.position;
    num_rows_ = rows.num_rows;
    local_row_ = group.local_row + tile_ * static_cast<int32_t>(kTileRows);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out_[i] = 0;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
    load_queries();
  }

  __device__ void load_queries() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row_ + half * 8;
      const __nv_bfloat16* q = arguments_.q + row_offset(row) + 2 * pair_;
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          queries_[4 * step + 2 * right + half] =
              row < num_rows_ ? *reinterpret_cast<const uint32_t*>(q + 16 * step + 8 * right) : 0;
        }
      }
    }
  }

  // Element offset of the tile's row in Q and in the output.
  __device__ int64_t row_offset(int row) const {
    return (int64_t{local_row_ + row} * arguments_.num_query_heads + head_) * kHeadDim;
  }

  __device__ void run_item() {
    int pending = -1;  // stage whose values are not yet added
    int distance = 0;  // slots from it to the cursor
    for (;; cursor_.advance(), ++distance) {
      const Slot& slot = wait_slot();
      const auto kind = static_cast<SlotKind>(uniform(static_cast<int32_t>(slot.kind)));
      if (kind != SlotKind::kKeys && kind != SlotKind::kColumns) break;
      const uint64_t mask = uniform(slot.mask[tile_]);
      if (mask == 0) {
        // The slot after next may need the buffer of the pending one.
        if (pending >= 0 && distance >= Shared::kStages - 1) {
          add_values(pending);
          pending = -1;
        }
        release(cursor_.stage);
        continue;
      }
      if (kind == SlotKind::kColumns) ptx::fence_async_shared();
      if (pending >= 0) {
        take_keys<true>(slot, mask, pending);
      } else {
        take_keys<false>(slot, mask, pending);
      }
      pending = cursor_.stage;
      distance = 0;
    }
    if (pending >= 0) add_values(pending);
  }

  // Scores and weights of the slot at the cursor; meanwhile the pending values are added.
  template <bool kPending>
  __device__ void take_keys(const Slot& slot, uint64_t mask, int pending) {
    ptx::hold(scores_);
    ptx::hold(weights_);
    ptx::hold(out_);
    ptx::wgmma_fence();
    issue_scores(cursor_.stage);
    if constexpr (kPending) {
      issue_values(pending);
      ptx::wgmma_wait<1>();
    } else {
      ptx::wgmma_wait<0>();
    }
    ptx::hold(scores_);
    if (~mask != 0 || slot.last_key > position_) apply_mask(slot, mask);
    float rescale[2];
    weigh(rescale);
    if constexpr (kPending) {
      ptx::wgmma_wait<0>();
      release(pending);
    }
    ptx::hold(out_);
    ptx::hold(weights_);
    scale_outputs(rescale);
    pack_weights();
  }

  __device__ void issue_scores(int stage) {
    const uint32_t k = ptx::shared_address(shared_.k[stage]);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t slice = k + step / 4 * (kSlotKeys * 128) + step % 4 * 32;
      ptx::Wgmma<kSlotKeys, false>::issue(scores_, queries_ + 4 * step,
                                          ptx::matrix_descriptor(slice, 16), step > 0);
    }
    ptx::wgmma_commit();
  }

  __device__ void issue_values(int stage) {
    const uint32_t v = ptx::shared_address(shared_.v[stage]);
#pragma unroll
    for (int step = 0; step < kSlotKeys / 16; ++step) {
      ptx::Wgmma<kHeadDim, true>::issue(
          out_, weights_ + 4 * step, ptx::matrix_descriptor(v + step * (16 * 128), kSlotKeys * 128),
          true);
    }
    ptx::wgmma_commit();
  }

  __device__ void add_values(int stage) {
    ptx::hold(weights_);
    ptx::hold(out_);
    ptx::wgmma_fence();
    issue_values(stage);
    ptx::wgmma_wait<0>();
    ptx::hold(out_);
    release(stage);
  }

  __device__ void apply_mask(const Slot& slot, uint64_t mask) {
    const uint64_t own = mask >> (2 * pair_);
    const bool causal = slot.last_key > position_;
    const int row = position_ + first_row_;
#pragma unroll
    for (int j = 0; j < kSlotKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool kept = (own >> (8 * j + e) & 1) != 0;
        bool seen = true, seen_below = true;
        if (causal) {
          const int column = 8 * j + 2 * pair_ + e;
          const int32_t key =
              slot.kind == SlotKind::kKeys ? slot.first_key + column : slot.columns[column];
          seen = key <= row;
          seen_below = key <= row + 8;
        }
        if (!kept || !seen) scores_[4 * j + e] = -INFINITY;
        if (!kept || !seen_below) scores_[4 * j + 2 + e] = -INFINITY;
      }
    }
  }

  // Scores become weights relative to the new maximum; what was summed before is to be multiplied
  // by `rescale`.
  __device__ void weigh(float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = maximum_[half];
#pragma unroll
      for (int j = 0; j < kSlotKeys / 8; ++j) {
        most = fmaxf(most, fmaxf(scores_[4 * j + 2 * half], scores_[4 * j + 2 * half + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      // A row that has seen nothing yet: any finite number keeps NaN away.
      const float base = most == -INFINITY ? 0 : most * arguments_.scale_log2;
      rescale[half] = ptx::exp2_approx(maximum_[half] * arguments_.scale_log2 - base);
      maximum_[half] = most;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kSlotKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores_[4 * j + 2 * half + e];
          score = ptx::exp2_approx(fmaf(score, arguments_.scale_log2, -base));
          sum += score;
        }
      }
      sum_[half] = fmaf(sum_[half], rescale[half], sum);
    }
  }

  __device__ void scale_outputs(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out_[i] *= rescale[i / 2 % 2];
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      weights_[i] = ptx::pack_bfloat16(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  __device__ void finish_item() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = first_row_ + half * 8;
      if (row >= num_rows_) continue;
      const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
      __nv_bfloat16* out = arguments_.out + row_offset(row) + 2 * pair_;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + 8 * j) = ptx::pack_bfloat16(
            out_[4 * j + 2 * half] * inverse, out_[4 * j + 2 * half + 1] * inverse);
      }
      if (arguments_.lse != nullptr && pair_ == 0) {
        arguments_.lse[head_ * arguments_.num_rows + local_row_ + row] =
            sum > 0 ? (maximum_[half] * arguments_.scale_log2 + log2f(sum)) * kLn2 : -INFINITY;
      }
    }
  }

  // The same in all lanes, which the compiler must know to keep matrix products asynchronous.
  template <typename T>
  __device__ static T uniform(T value) {
    return __shfl_sync(~0u, value, 0);
  }

  __device__ const Slot& wait_slot() {
    ptx::barrier_wait(&shared_.full[cursor_.stage], cursor_.parity);
    return shared_.slots[cursor_.stage];
  }

  __device__ void release(int stage) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) ptx::barrier_arrive(&shared_.empty[stage]);
  }

  Shared& shared_;
  const AttentionArguments& arguments_;
  const int tile_;
  // This thread's place in the fragments of kernels/cuda/ptx/wgmma.cuh.
  const int first_row_ =
      static_cast<int>(threadIdx.x % kWarpgroup / kWarp * 16 + threadIdx.x % kWarp / 4);
  const int pair_ = static_cast<int>(threadIdx.x % 4);
  RingCursor<Shared::kStages> cursor_;
  int32_t head_ = 0;
  int32_t position_ = 0;
  int32_t num_rows_ = 0;
  int32_t local_row_ = 0;
  uint32_t queries_[kHeadDim / 4];
  uint32_t weights_[kScores / 2];
  float scores_[kScores];
  float out_[kOutputs];
  float maximum_[2];
  float sum_[2];
};

}  // namespace millrace::kernels::cuda
