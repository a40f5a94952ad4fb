// SPDX-License-Identifier: Apache-2.0
// The other producer warps of the attention kernel: each takes every third order for a slot of
// columns, leaves out for every tile those that one of its bands covers, and gathers the rest.
#pragma once

#include "kernels/cuda/sm90/attention/attention_lists.cuh"
#include "kernels/cuda/sm90/ptx/copy.cuh"

namespace millrace::kernels::cuda {

template <int kHeadDim>
class AttentionGatherer {
  using Shared = AttentionShared<kHeadDim>;
  static constexpr int kTiles = Shared::kTiles;

 public:
  __device__ AttentionGatherer(Shared& shared, const AttentionArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  // `first` in [0, kGatherWarps).
  __device__ void run(int first) {
    warp_ = first + 1;
    for (int number = first;; number += kGatherWarps) {
      const int entry = number % kOrders;
      const uint32_t parity = number / kOrders % 2;
      const ColumnOrder& order = shared_.orders[entry];
      ptx::barrier_wait(&shared_.announced[entry], parity);
      const WorkItem item = order.item;
      if (item.head == kNoHead) return;
      choose(item, order.first_column);
      ptx::barrier_wait(&shared_.placed[entry], parity);
      describe(order);
      uint64_t* full = &shared_.full[order.stage];
      if constexpr (Shared::kApart) {
        copy_rows<true, false>(item.head, order.stage);
        arrive(full);
        copy_rows<false, true>(item.head, order.stage);
        arrive(&shared_.full_values[order.stage]);
      } else {
        copy_rows<true, true>(item.head, order.stage);
        arrive(full);
      }
      add_pairs(arguments_, item.head, pairs_);
    }
  }

 private:
  // Finds out which of the columns the tiles attend to.
  __device__ void choose(const WorkItem& item, int32_t first_column) {
    if (item.head != head_) {
      head_ = item.head;
      lists_ = HeadLists::of(arguments_, head_, shared_.bands[warp_]);
    }
    pairs_ = 0;
    last_key_ = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) mask_[t] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t number = first_column + half * kWarp + lane_;
      keys_[half] = number < lists_.num_columns ? lists_.columns[number] : INT_MAX;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const TileRows rows(item.group, t);
        const bool wanted =
            rows.num_rows > 0 && keys_[half] < rows.end() && !lists_.in_band(rows, keys_[half]);
        mask_[t] |= uint64_t{__ballot_sync(~0u, wanted)} << (half * kWarp);
        if (wanted) {
          pairs_ += rows.end() - max(rows.position, keys_[half]);
          last_key_ = keys_[half];
        }
      }
    }
    last_key_ = __reduce_max_sync(~0u, last_key_);
  }

  __device__ void describe(const ColumnOrder& order) {
    if (lane_ != 0) return;
    Slot& slot = shared_.slots[order.stage];
    slot.first_key = order.first_column;
    slot.last_key = last_key_;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint64_t own = mask_[t];
      slot.mask[t] = own;
      slot.tasks[t] = {.action = own == 0 ? Action::kSkip : Action::kGather,
                       .pass_over = order.pass_over[t]};
    }
  }

  // Arrives once the copied data has landed.
  __device__ void arrive(uint64_t* full) const {
    ptx::barrier_arrive_after_copies(full);
    if (lane_ == 0) ptx::barrier_arrive(full);
  }

  // Copies 16 bytes per lane, a row of K and of V by neighbouring lanes, into the swizzled panels.
  // Rows that no tile attends to become zeros.
  template <bool kKeys, bool kValues>
  __device__ void copy_rows(int32_t head, int stage) {
    constexpr int kChunks = kHeadDim / 8;
    constexpr int kRowsAtOnce = kWarp / kChunks;
    const int chunk = lane_ % kChunks;
    const int64_t slab = int64_t{head / arguments_.heads_per_kv_head} * arguments_.token_stride;
    const uint32_t k = ptx::shared_address(shared_.k[stage]);
    const uint32_t v = ptx::shared_address(shared_.v[stage]);
    uint64_t present = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) present |= mask_[t];
#pragma unroll 8
    for (int first = 0; first < kSlotKeys; first += kRowsAtOnce) {
      const int row = first + lane_ / kChunks;
      const bool wanted = (present >> row & 1) != 0;
      const int32_t key = __shfl_sync(~0u, first < kWarp ? keys_[0] : keys_[1], row % kWarp);
      const int64_t source = (slab + (wanted ? key : 0)) * kHeadDim + chunk * 8;
      const uint32_t target = chunk / 8 * (kSlotKeys * 128) + row * 128 + ((chunk ^ row) % 8) * 16;
      if constexpr (kKeys) ptx::copy_16_bytes(k + target, arguments_.k + source, wanted);
      if constexpr (kValues) ptx::copy_16_bytes(v + target, arguments_.v + source, wanted);
    }
  }

  Shared& shared_;
  const AttentionArguments& arguments_;
  int warp_ = 0;  // among the producers
  int32_t head_ = kNoHead;
  HeadLists lists_;
  // State of the current columns.
  int32_t keys_[2];  // of rows `lane` and `lane` + 32 of the slot
  uint64_t mask_[kTiles];
  int32_t last_key_ = 0;  // the last that a tile attends to
  int64_t pairs_ = 0;
  const int lane_ = static_cast<int>(threadIdx.x % kWarp);
};

}  // namespace millrace::kernels::cuda
