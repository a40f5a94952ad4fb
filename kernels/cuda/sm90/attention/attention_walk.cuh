// SPDX-License-Identifier: Apache-2.0
// The first producer warp of the attention kernel: walks the lists of a head for a group of row
// tiles and fills the ring with the keys and values they reach, each key once, with a mask that
// says for every tile which keys of a slot are its own (kernels/index/coverage.h, exactly). All 32
// lanes work together: a batch is up to 32 candidate slots, one per lane.
#pragma once

#include "kernels/cuda/sm90/attention/attention_lists.cuh"
#include "kernels/cuda/sm90/ptx/copy.cuh"

namespace millrace::kernels::cuda {

template <int kHeadDim>
class AttentionWalker {
  using Shared = AttentionShared<kHeadDim>;
  static constexpr int kTiles = Shared::kTiles;

 public:
  __device__ AttentionWalker(Shared& shared, const AttentionArguments& arguments,
                             const CUtensorMap& k_map, const CUtensorMap& v_map)
      : shared_(shared), arguments_(arguments), k_map_(k_map), v_map_(v_map) {}

  __device__ void run() {
    const int32_t num_items = arguments_.num_query_heads * arguments_.num_groups;
    for (;;) {
      int32_t number = 0;
      if (lane_ == 0) number = static_cast<int32_t>(atomicAdd(arguments_.next_item, 1));
      number = __shfl_sync(~0u, number, 0);
      if (number >= num_items) break;
      start(number);
      walk();
    }
    push_marker({.head = kNoHead});
    for (int i = 0; i < kGatherWarps; ++i) announce({.item = {.head = kNoHead}});
  }

 private:
  __device__ void start(int32_t number) {
    const int32_t batch = number / (arguments_.heads_at_a_time * arguments_.num_groups);
    const int32_t first_head = batch * arguments_.heads_at_a_time;
    const int32_t num_heads =
        min(arguments_.heads_at_a_time, arguments_.num_query_heads - first_head);
    const int32_t within = number - first_head * arguments_.num_groups;
    const int32_t head = first_head + within % num_heads;
    group_ = arguments_.groups[within / num_heads];
    if (head != head_) {
      head_ = head;
      if (arguments_.dense_from > 0) lists_ = HeadLists::of(arguments_, head, shared_.bands[0]);
    }
    prefetch_queries();
    push_marker({.head = head_, .group = group_});
  }

  // The tiles read their queries when they reach the marker.
  __device__ void prefetch_queries() {
    constexpr int kLineElements = 64;  // of 128 bytes
    constexpr int32_t kLines = kHeadDim / kLineElements;
    for (int32_t i = lane_; i < group_.num_rows * kLines; i += kWarp) {
      const int64_t row = int64_t{group_.local_row} + i / kLines;
      ptx::prefetch_line(arguments_.q + (row * arguments_.num_query_heads + head_) * kHeadDim +
                         i % kLines * kLineElements);
    }
  }

  __device__ void walk() {
    pairs_ = 0;
    next_column_ = announced_column_ = 0;
    if (group_.position >= arguments_.dense_from) {
      walk_densely();
    } else if (has_blocks()) {
      walk_pages();
    } else {
      start_columns();
      walk_bands();
      while (columns_left()) order_columns();
    }
    add_pairs(arguments_, head_, pairs_);
  }

  __device__ void walk_densely() {
    for (int32_t first = group_.first_page; first < group_.end_page; first += kWarp) {
      const int32_t page = first + lane_;
      const int32_t key = page * kSlotKeys;
      uint64_t mask[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const TileRows rows(group_, t);
        const bool wanted = page < group_.end_page && rows.num_rows > 0;
        mask[t] = wanted ? interval_mask(first_seen(rows.position) - key, rows.end() - key) : 0;
      }
      push_batch(key, mask);
    }
  }

  // The first key that a row sees; below 0 if it sees all keys before it.
  __device__ int32_t first_seen(int32_t row) const {
    return row + 1 - arguments_.window;
  }

  // ---- bands: slots start where a band's keys for the whole group start.

  __device__ void walk_bands() {
    const TileRows first(group_, 0);
    const int32_t end_row = group_.position + group_.num_rows;
    const int32_t used =
        partition_point(lists_.num_bands, [&](int32_t b) { return lists_.bands[b].lo < end_row; });
    // Bands ascend in offset, so their keys descend: the last used one comes first, lane by lane.
    for (int32_t base = used - 1; base >= 0; base -= kWarp) {
      const int32_t i = base - lane_;
      int32_t begin = 0, end = 0;
      if (i >= 0) {
        begin = max(first.position - lists_.bands[i].hi, 0);
        end = end_row - lists_.bands[i].lo;
        // Leaves out what the previous band has already fetched for any of the tiles.
        if (i + 1 < used) begin = max(begin, end_row - lists_.bands[i + 1].lo);
      }
      const int32_t count = end > begin ? (end - begin + kSlotKeys - 1) / kSlotKeys : 0;
      int32_t through = count;  // slots of the lanes up to this one
#pragma unroll
      for (int delta = 1; delta < kWarp; delta *= 2) {
        const int32_t other = __shfl_up_sync(~0u, through, delta);
        if (lane_ >= delta) through += other;
      }
      const int32_t total = __shfl_sync(~0u, through, kWarp - 1);
      for (int32_t slot = lane_; slot - lane_ < total; slot += kWarp) {
        push_band_slots(base, begin, end, through, count, slot, slot < total);
      }
    }
  }

  // Slot number `slot` of the current 32 bands, as candidate of this lane. `through` rises from
  // lane to lane, so the owner is the first lane where it exceeds `slot`.
  __device__ void push_band_slots(int32_t base, int32_t begin, int32_t end, int32_t through,
                                  int32_t count, int32_t slot, bool present) {
    int owner = 0;  // the lane whose band the slot is of
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      if (__shfl_sync(~0u, through, owner + step - 1) <= slot) owner += step;
    }
    const int32_t before = __shfl_sync(~0u, through - count, owner);
    const int32_t key = __shfl_sync(~0u, begin, owner) + (slot - before) * kSlotKeys;
    const int32_t slot_end = min(key + kSlotKeys, __shfl_sync(~0u, end, owner));
    uint64_t mask[kTiles] = {};
    // The band's own keys, and those of the slot that nearer bands give one of the tiles.
    for (int32_t b = base - owner; present && b >= 0; --b) {
      const Band band = lists_.bands[b];
      if (group_.position - band.hi >= slot_end) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const TileRows rows(group_, t);
        mask[t] |= interval_mask(rows.position - band.hi - key, rows.end() - band.lo - key);
      }
    }
    const uint64_t within = interval_mask(0, slot_end - key);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      mask[t] = TileRows(group_, t).num_rows > 0 ? mask[t] & within : 0;
    }
    push_batch(key, mask);
  }

  // ---- blocks: slots are pages.

  __device__ bool has_blocks() const {
    const IndexView& index = arguments_.index;
    if (index.shape.num_tiles == 0) return false;
    bool any = false;
    for (int t = 0; t < kTiles; ++t) {
      if (TileRows(group_, t).num_rows == 0) break;
      any |= index.block_count[int64_t{head_} * index.shape.num_tiles + group_.first_tile + t] != 0;
    }
    return any;
  }

  __device__ void walk_pages() {
    const int32_t num_pages = (group_.position + group_.num_rows + kSlotKeys - 1) / kSlotKeys;
    // No builder makes lists of all three kinds together, so here every page is looked at.
    const bool mixed = lists_.num_bands > 0 || lists_.num_columns > 0;
    for (int32_t window = 0; window < num_pages; window += kWindowPages) {
      const int32_t num_words = (min(num_pages - window, kWindowPages) + kWarp - 1) / kWarp;
      for (int t = 0; t < kTiles; ++t) fill_window(t, window, num_words);
      __syncwarp();
      for (int32_t word = 0; word < num_words; ++word) {
        const uint32_t candidates = window_union(word);
        if (candidates == 0 && !mixed) continue;
        push_pages(window + word * kWarp, word, mixed);
      }
      __syncwarp();
    }
  }

  __device__ void fill_window(int tile, int32_t window, int32_t num_words) {
    const IndexView& index = arguments_.index;
    const TileRows rows(group_, tile);
    const int64_t number = int64_t{head_} * index.shape.num_tiles + group_.first_tile + tile;
    const int32_t count = rows.num_rows == 0 ? 0 : index.block_count[number];
    for (int32_t word = lane_; word < num_words; word += kWarp) {
      shared_.window[tile][word] = count == kDenseTile ? ~0u : 0u;
    }
    if (count <= 0) return;
    __syncwarp();
    const int32_t* blocks =
        index.blocks + int64_t{head_} * index.shape.max_blocks + index.block_begin[number];
    for (int32_t i = lane_; i < count; i += kWarp) {
      const int32_t page = blocks[i] - window;
      if (page >= 0 && page < num_words * kWarp) {
        atomicOr(&shared_.window[tile][page / kWarp], 1u << page % kWarp);
      }
    }
  }

  __device__ uint32_t window_union(int32_t word) const {
    uint32_t bits = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) bits |= shared_.window[t][word];
    return bits;
  }

  __device__ void push_pages(int32_t first_page, int32_t word, bool mixed) {
    const int32_t key = (first_page + lane_) * kSlotKeys;
    uint64_t mask[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const TileRows rows(group_, t);
      const bool whole = (shared_.window[t][word] >> lane_ & 1) != 0;
      mask[t] = 0;
      if (rows.num_rows == 0 || key >= rows.end()) continue;
      if (whole) {
        mask[t] = ~uint64_t{0};
      } else if (mixed) {
        mask[t] = lists_.mask(rows, key);
      }
      mask[t] &= interval_mask(0, rows.end() - key);
    }
    push_batch(key, mask);
  }

  // ---- columns: 64 of the list to a slot, which a gather warp fills.

  __device__ void start_columns() {
    read_announced_key();
    for (int i = 0; i < kGatherWarps; ++i) announce_columns();
  }

  // Read ahead, so that it has arrived by the time it is needed.
  __device__ void read_announced_key() {
    announced_key_ =
        announced_column_ < lists_.num_columns ? lists_.columns[announced_column_] : INT_MAX;
  }

  __device__ void announce_columns() {
    if (announced_key_ >= group_.position + group_.num_rows) return;
    announce({.item = {.head = head_, .group = group_}, .first_column = announced_column_});
    announced_column_ += kSlotKeys;
    read_announced_key();
  }

  __device__ void announce(const ColumnOrder& order) {
    const int entry = num_announced_++ % kOrders;
    if (lane_ == 0) {
      shared_.orders[entry] = order;
      ptx::barrier_arrive(&shared_.announced[entry]);
    }
  }

  __device__ bool columns_left() const {
    return next_column_ < announced_column_;
  }

  __device__ void order_columns() {
    constexpr int32_t kNothing[kTiles] = {};
    order_columns(kNothing);
  }

  __device__ void order_columns(const int32_t (&pass_over)[kTiles]) {
    acquire();
    acquire_values();
    const int entry = num_placed_++ % kOrders;
    if (lane_ == 0) {
      ColumnOrder& order = shared_.orders[entry];
      order.stage = cursor_.stage;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) order.pass_over[t] = min(pass_over[t], 1);
      ptx::barrier_arrive(&shared_.placed[entry]);
    }
    cursor_.advance();
    next_column_ += kSlotKeys;
    announce_columns();
  }

  // ---- the ring

  __device__ Slot& acquire() {
    ptx::barrier_wait(&shared_.empty[cursor_.stage], cursor_.parity ^ 1);
    return shared_.slots[cursor_.stage];
  }

  // Used if they have barriers of their own.
  __device__ void acquire_values() {
    if constexpr (Shared::kApart) {
      ptx::barrier_wait(&shared_.empty_values[cursor_.stage], cursor_.parity ^ 1);
    }
  }

  __device__ void push_marker(const WorkItem& item) {
    Slot& slot = acquire();
    acquire_values();
    if (lane_ == 0) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) slot.tasks[t] = {.action = Action::kMarker, .pass_over = 0};
      slot.item = item;
      ptx::barrier_arrive(&shared_.full[cursor_.stage]);
      if constexpr (Shared::kApart) ptx::barrier_arrive(&shared_.full_values[cursor_.stage]);
    }
    __syncwarp();
    ptx::barrier_arrive(&shared_.full[cursor_.stage]);
    if constexpr (Shared::kApart) ptx::barrier_arrive(&shared_.full_values[cursor_.stage]);
    cursor_.advance();
  }

  // Pushes the candidates of all lanes, except those without keys. Columns alternate with them, so
  // that gathering overlaps with the rest.
  __device__ void push_batch(int32_t key, const uint64_t (&mask)[kTiles]) {
    uint32_t wanted = 0;  // lanes
    uint32_t wanted_by[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      wanted_by[t] = __ballot_sync(~0u, mask[t] != 0);
      wanted |= wanted_by[t];
      count_pairs(TileRows(group_, t), key, mask[t]);
    }
    while (wanted != 0) {
      const int source = __ffs(static_cast<int>(wanted)) - 1;
      wanted &= wanted - 1;
      uint64_t slot_mask[kTiles];
      int32_t pass_over[kTiles] = {};
      const bool columns_next = columns_left();
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        slot_mask[t] = __shfl_sync(~0u, mask[t], source);
        // The lanes before the next one that the tile wants.
        const uint32_t own = wanted_by[t] & wanted;
        pass_over[t] = __popc(wanted & ((own & -own) - 1));
      }
      const int32_t first_key = __shfl_sync(~0u, key, source);
      push_keys(first_key, slot_mask, pass_over, !columns_next);
      if (columns_next) order_columns(pass_over);
    }
  }

  __device__ void push_keys(int32_t first_key, const uint64_t (&mask)[kTiles],
                            const int32_t (&pass_over)[kTiles], bool may_pass) {
    Slot& slot = acquire();
    uint64_t* full = &shared_.full[cursor_.stage];
    uint64_t* full_values = Shared::kApart ? &shared_.full_values[cursor_.stage] : full;
    const int32_t kv_head = head_ / arguments_.heads_per_kv_head;
    if (lane_ == 0) {
      slot.first_key = first_key;
      const int32_t last_key = first_key + kSlotKeys - 1;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint64_t own = mask[t];
        slot.mask[t] = own;
        const TileRows rows(group_, t);
        const bool whole =
            ~own == 0 && last_key <= rows.position && first_key >= first_seen(rows.end() - 1);
        slot.tasks[t] = {.action = own == 0 ? Action::kSkip
                                   : whole  ? Action::kWhole
                                            : Action::kMasked,
                         .pass_over = may_pass ? pass_over[t] : 0};
      }
      ptx::barrier_arrive_expecting(full, (Shared::kApart ? 1 : 2) * Shared::kTileBytes);
      copy_keys(ptx::shared_address(shared_.k[cursor_.stage]), k_map_, first_key, kv_head, full);
    }
    if constexpr (Shared::kApart) {
      __syncwarp();
      ptx::barrier_arrive(full);
      acquire_values();
    }
    if (lane_ == 0) {
      if constexpr (Shared::kApart) {
        ptx::barrier_arrive_expecting(full_values, Shared::kTileBytes);
      }
      copy_keys(ptx::shared_address(shared_.v[cursor_.stage]), v_map_, first_key, kv_head,
                full_values);
    }
    __syncwarp();
    ptx::barrier_arrive(full_values);
    cursor_.advance();
  }

  __device__ static void copy_keys(uint32_t shared, const CUtensorMap& map, int32_t first_key,
                                   int32_t kv_head, uint64_t* full) {
#pragma unroll
    for (int panel = 0; panel < kHeadDim / 64; ++panel) {
      ptx::copy_box(shared + panel * kSlotKeys * 128, map, panel * 64, first_key, kv_head, full);
    }
  }

  // ---- density

  __device__ void count_pairs(const TileRows& rows, int32_t key, uint64_t mask) {
    if (arguments_.covered_pairs == nullptr) return;
    if (key + kSlotKeys <= rows.position && key >= first_seen(rows.end() - 1)) {
      pairs_ += int64_t{__popcll(mask)} * rows.num_rows;
      return;
    }
    for (; mask != 0; mask &= mask - 1) {
      const int32_t masked_key = key + __ffsll(static_cast<long long>(mask)) - 1;
      const int32_t end_row = min(rows.end(), masked_key + arguments_.window);
      pairs_ += end_row - max(rows.position, masked_key);
    }
  }

  Shared& shared_;
  const AttentionArguments& arguments_;
  const CUtensorMap& k_map_;
  const CUtensorMap& v_map_;
  const int lane_ = static_cast<int>(threadIdx.x % kWarp);
  RingCursor<Shared::kStages> cursor_;
  TileGroup group_;
  HeadLists lists_;
  int32_t head_ = kNoHead;
  // Where the next slots of columns to be placed and to be announced begin in the list.
  int32_t next_column_ = 0;
  int32_t announced_column_ = 0;
  int32_t announced_key_ = INT_MAX;  // its first key
  int num_announced_ = 0;
  int num_placed_ = 0;
  int64_t pairs_ = 0;
};

}  // namespace millrace::kernels::cuda
