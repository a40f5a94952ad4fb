// The first producer warp of the attention kernel: walks the lists of a head for a group of row
// tiles and fills the ring with the keys and values they reach, each key once, with a mask that
// says for every tile which keys of a slot are its own (kernels/api/coverage.h, exactly). All 32
// lanes work together: a batch is up to 32 candidate slots, one per lane.
#pragma once

#include "kernels/cuda/attention_lists.cuh"
#include "kernels/cuda/ptx/copy.cuh"

namespace millrace::kernels::cuda {

template <int kHeadDim, int kTiles>
class AttentionWalker {
  using Shared = AttentionShared<kHeadDim, kTiles>;

 public:
  __device__ AttentionWalker(Shared& shared, const AttentionArguments& arguments,
                             const CUtensorMap& k_map, const CUtensorMap& v_map)
      : shared_(shared), arguments_(arguments), k_map_(k_map), v_map_(v_map) {}

  __device__ void run() {
    const auto num_items =
        static_cast<uint32_t>(arguments_.num_query_heads * arguments_.num_groups);
    for (;;) {
      uint32_t item = 0;
      if (lane_ == 0) item = atomicAdd(arguments_.next_item, 1);
      item = __shfl_sync(~0u, item, 0);
      if (item >= num_items) break;
      group_ = arguments_.groups[item % arguments_.num_groups];
      push_marker(static_cast<int32_t>(item));
      walk(static_cast<int32_t>(item) / arguments_.num_groups);
    }
    push_marker(kNoItem);
    for (int i = 0; i < kGatherWarps; ++i) place_order({.head = kNoHead});
  }

 private:
  __device__ void walk(int32_t head) {
    if (head != head_) {
      head_ = head;
      lists_ = HeadLists::of(arguments_.index, head);
    }
    pairs_ = 0;
    next_column_key_ = INT_MAX;
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
        mask[t] = page < group_.end_page ? interval_mask(0, TileRows(group_, t).end() - key) : 0;
        if (TileRows(group_, t).num_rows == 0) mask[t] = 0;
      }
      push_batch(key, mask);
    }
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
        // What the band before has already fetched for any of the tiles.
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
    // The band's own keys, and those that nearer bands give one of the tiles already.
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
      any |= index.block_count[head_ * index.shape.num_tiles + group_.first_tile + t] != 0;
    }
    return any;
  }

  __device__ void walk_pages() {
    const int32_t num_pages = (group_.position + group_.num_rows + kSlotKeys - 1) / kSlotKeys;
    // Lists of all three kinds together: no builder makes them, so every page is looked at.
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
    const int64_t number = head_ * index.shape.num_tiles + group_.first_tile + tile;
    const int32_t count = rows.num_rows == 0 ? 0 : index.block_count[number];
    for (int32_t word = lane_; word < num_words; word += kWarp) {
      shared_.window[tile][word] = count == kDenseTile ? ~0u : 0u;
    }
    if (count <= 0) return;
    __syncwarp();
    const int32_t* blocks =
        index.blocks + head_ * index.shape.max_blocks + index.block_begin[number];
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
    next_column_ = -kSlotKeys;
    advance_columns();
  }

  // What comes next is read ahead: by the time it is asked for it has arrived.
  __device__ void advance_columns() {
    next_column_ += kSlotKeys;
    next_column_key_ = next_column_ < lists_.num_columns ? lists_.columns[next_column_] : INT_MAX;
  }

  __device__ bool columns_left() const {
    return next_column_key_ < group_.position + group_.num_rows;
  }

  __device__ void order_columns() {
    acquire();
    place_order(
        {.group = group_, .head = head_, .first_column = next_column_, .stage = cursor_.stage});
    cursor_.advance();
    advance_columns();
  }

  __device__ void place_order(const ColumnOrder& order) {
    const int entry = num_orders_++ % kOrders;
    if (lane_ == 0) {
      shared_.orders[entry] = order;
      ptx::barrier_arrive(&shared_.ordered[entry]);
    }
  }

  // ---- the ring

  __device__ Slot& acquire() {
    ptx::barrier_wait(&shared_.empty[cursor_.stage], cursor_.parity ^ 1);
    return shared_.slots[cursor_.stage];
  }

  __device__ void push_marker(int32_t item) {
    Slot& slot = acquire();
    if (lane_ == 0) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) slot.action[t] = Action::kMarker;
      slot.item = item;
      ptx::barrier_arrive(&shared_.full[cursor_.stage]);
    }
    __syncwarp();
    ptx::barrier_arrive(&shared_.full[cursor_.stage]);
    cursor_.advance();
  }

  // The candidates of all lanes, those without keys left out; columns alternate with them, so that
  // gathering overlaps with the rest.
  __device__ void push_batch(int32_t key, const uint64_t (&mask)[kTiles]) {
    uint64_t any = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      any |= mask[t];
      count_pairs(TileRows(group_, t), key, mask[t]);
    }
    uint32_t wanted = __ballot_sync(~0u, any != 0);
    while (wanted != 0) {
      const int source = __ffs(static_cast<int>(wanted)) - 1;
      wanted &= wanted - 1;
      uint64_t slot_mask[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) slot_mask[t] = __shfl_sync(~0u, mask[t], source);
      push_keys(__shfl_sync(~0u, key, source), slot_mask);
      if (columns_left()) order_columns();
    }
  }

  __device__ void push_keys(int32_t key, const uint64_t (&mask)[kTiles]) {
    Slot& slot = acquire();
    uint64_t* full = &shared_.full[cursor_.stage];
    if (lane_ == 0) {
      slot.first_key = key;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        slot.mask[t] = mask[t];
        const bool whole = ~mask[t] == 0 && key + kSlotKeys - 1 <= TileRows(group_, t).position;
        slot.action[t] = mask[t] == 0 ? Action::kSkip : whole ? Action::kWhole : Action::kMasked;
      }
      ptx::barrier_arrive_expecting(full, 2 * Shared::kTileBytes);
      const uint32_t k = ptx::shared_address(shared_.k[cursor_.stage]);
      const uint32_t v = ptx::shared_address(shared_.v[cursor_.stage]);
      const int32_t kv_head = head_ / arguments_.heads_per_kv_head;
#pragma unroll
      for (int panel = 0; panel < kHeadDim / 64; ++panel) {
        ptx::copy_box(k + panel * kSlotKeys * 128, k_map_, panel * 64, key, kv_head, full);
      }
#pragma unroll
      for (int panel = 0; panel < kHeadDim / 64; ++panel) {
        ptx::copy_box(v + panel * kSlotKeys * 128, v_map_, panel * 64, key, kv_head, full);
      }
    }
    __syncwarp();
    ptx::barrier_arrive(full);
    cursor_.advance();
  }

  // ---- density

  __device__ void count_pairs(const TileRows& rows, int32_t key, uint64_t mask) {
    if (arguments_.covered_pairs == nullptr) return;
    if (key + kSlotKeys <= rows.position) {
      pairs_ += int64_t{__popcll(mask)} * rows.num_rows;
      return;
    }
    for (; mask != 0; mask &= mask - 1) {
      const int32_t masked_key = key + __ffsll(static_cast<long long>(mask)) - 1;
      pairs_ += rows.end() - max(rows.position, masked_key);
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
  int32_t next_column_ = 0;
  int32_t next_column_key_ = INT_MAX;  // the first key of the next slot of columns
  int num_orders_ = 0;
  int64_t pairs_ = 0;
};

}  // namespace millrace::kernels::cuda
