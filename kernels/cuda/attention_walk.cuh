// The producer warp of the attention kernel: walks the lists of a head for a group of row tiles and
// fills the ring with the keys and values they reach, each key once, with a mask that says for
// every tile which keys of a slot are its own (kernels/api/coverage.h, exactly). All 32 lanes work
// together: a batch is up to 32 candidate slots, one per lane.
#pragma once

#include "kernels/cuda/attention_ring.cuh"
#include "kernels/cuda/ptx/copy.cuh"

namespace millrace::kernels::cuda {

// Bits [begin, end) of a slot, clipped to it.
__device__ inline uint64_t interval_mask(int32_t begin, int32_t end) {
  begin = max(begin, 0);
  end = min(end, kSlotKeys);
  return begin < end ? (~uint64_t{0} >> (kSlotKeys - (end - begin))) << begin : 0;
}

// The first number in [0, count) for which `holds` is false, where it is true for all before it.
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

template <int kHeadDim>
class AttentionProducer {
  using Shared = AttentionShared<kHeadDim>;

 public:
  __device__ AttentionProducer(Shared& shared, const AttentionArguments& arguments,
                               const CUtensorMap& k_map, const CUtensorMap& v_map)
      : shared_(shared), arguments_(arguments), k_map_(k_map), v_map_(v_map) {}

  __device__ void run() {
    const uint32_t num_items = arguments_.num_query_heads * arguments_.num_groups;
    for (;;) {
      uint32_t item = 0;
      if (lane_ == 0) item = atomicAdd(arguments_.next_item, 1);
      item = __shfl_sync(~0u, item, 0);
      if (item >= num_items) break;
      push_marker(SlotKind::kItem, static_cast<int32_t>(item));
      walk(item);
    }
    push_marker(SlotKind::kStop, 0);
  }

 private:
  __device__ void walk(uint32_t item) {
    const int32_t head = static_cast<int32_t>(item) / arguments_.num_groups;
    group_ = arguments_.groups[item % arguments_.num_groups];
    kv_head_ = head / arguments_.heads_per_kv_head;
    pairs_ = 0;
    next_column_ = 0;
    num_staged_ = 0;
    lists_ = {};
    if (group_.position >= arguments_.dense_from) {
      walk_pages(/*dense=*/true, head);
    } else {
      const IndexView& index = arguments_.index;
      lists_ = {.bands = index.bands + int64_t{head} * index.shape.max_bands,
                .num_bands = index.num_bands[head],
                .columns = index.columns + int64_t{head} * index.shape.max_columns,
                .num_columns = index.num_columns[head]};
      if (has_blocks(head)) {
        next_column_ = lists_.num_columns;  // the masks of the pages hold them
        walk_pages(/*dense=*/false, head);
      } else {
        walk_bands();
        while (next_column_ < lists_.num_columns) stage_columns();
        if (num_staged_ > 0) push_columns(num_staged_);
      }
    }
    if (arguments_.covered_pairs != nullptr) add_pairs(head);
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
    uint64_t mask[kGroupTiles] = {};
    // The band's own keys, and those that nearer bands give one of the tiles already.
    for (int32_t b = base - owner; present && b >= 0; --b) {
      const Band band = lists_.bands[b];
      if (group_.position - band.hi >= slot_end) break;
#pragma unroll
      for (int t = 0; t < kGroupTiles; ++t) {
        const TileRows rows(group_, t);
        mask[t] |= interval_mask(rows.position - band.hi - key, rows.end() - band.lo - key);
      }
    }
    const uint64_t within = interval_mask(0, slot_end - key);
#pragma unroll
    for (int t = 0; t < kGroupTiles; ++t) {
      mask[t] = TileRows(group_, t).num_rows > 0 ? mask[t] & within : 0;
    }
    push_batch(key, mask);
  }

  // ---- blocks: slots are pages.

  __device__ bool has_blocks(int32_t head) const {
    const IndexView& index = arguments_.index;
    if (index.shape.num_tiles == 0) return false;
    bool any = false;
    for (int t = 0; t < kGroupTiles; ++t) {
      if (TileRows(group_, t).num_rows == 0) break;
      any |= index.block_count[head * index.shape.num_tiles + group_.first_tile + t] != 0;
    }
    return any;
  }

  __device__ void walk_pages(bool dense, int32_t head) {
    const int32_t num_pages = (group_.position + group_.num_rows + kSlotKeys - 1) / kSlotKeys;
    // Lists of all three kinds together: no builder makes them, so every page is looked at.
    const bool mixed = lists_.num_bands > 0 || lists_.num_columns > 0;
    for (int32_t window = 0; window < num_pages; window += kWindowPages) {
      const int32_t num_words = (min(num_pages - window, kWindowPages) + kWarp - 1) / kWarp;
      for (int t = 0; t < kGroupTiles; ++t) fill_window(dense, head, t, window, num_words);
      __syncwarp();
      for (int32_t word = 0; word < num_words; ++word) {
        const uint32_t candidates = window_union(word);
        if (candidates == 0 && !mixed) continue;
        push_pages(window + word * kWarp, word, mixed);
      }
      __syncwarp();
    }
  }

  __device__ void fill_window(bool dense, int32_t head, int tile, int32_t window,
                              int32_t num_words) {
    const IndexView& index = arguments_.index;
    const TileRows rows(group_, tile);
    const int64_t number = head * index.shape.num_tiles + group_.first_tile + tile;
    const int32_t count = rows.num_rows == 0 ? 0 : dense ? kDenseTile : index.block_count[number];
    for (int32_t word = lane_; word < num_words; word += kWarp) {
      shared_.window[tile][word] = count == kDenseTile ? ~0u : 0u;
    }
    if (count <= 0) return;
    __syncwarp();
    const int32_t* blocks =
        index.blocks + head * index.shape.max_blocks + index.block_begin[number];
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
    for (int t = 0; t < kGroupTiles; ++t) bits |= shared_.window[t][word];
    return bits;
  }

  __device__ void push_pages(int32_t first_page, int32_t word, bool mixed) {
    const int32_t key = (first_page + lane_) * kSlotKeys;
    uint64_t mask[kGroupTiles];
#pragma unroll
    for (int t = 0; t < kGroupTiles; ++t) {
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

  // ---- columns: gathered, 64 to a slot, those that a band gives a tile left out for that tile.

  static constexpr int kColumnBits = 28;
  static constexpr int32_t kColumnMask = (1 << kColumnBits) - 1;

  __device__ void stage_columns() {
    int32_t entry = 0;
    if (next_column_ + lane_ < lists_.num_columns) {
      const int32_t column = lists_.columns[next_column_ + lane_];
#pragma unroll
      for (int t = 0; t < kGroupTiles; ++t) {
        const TileRows rows(group_, t);
        const bool wanted =
            rows.num_rows > 0 && column < rows.end() && !lists_.in_band(rows, column);
        entry |= wanted ? 1 << (kColumnBits + t) : 0;
      }
      entry = entry == 0 ? 0 : entry | column;
    }
    next_column_ += kWarp;
    const uint32_t wanted = __ballot_sync(~0u, entry != 0);
    if (entry != 0) {
      shared_.staged[num_staged_ + __popc(wanted & ((1u << lane_) - 1))] = entry;
    }
    num_staged_ += __popc(wanted);
    __syncwarp();
    if (num_staged_ < kSlotKeys) return;
    push_columns(kSlotKeys);
    num_staged_ -= kSlotKeys;
    const int32_t rest = lane_ < num_staged_ ? shared_.staged[kSlotKeys + lane_] : 0;
    __syncwarp();
    shared_.staged[lane_] = rest;
    __syncwarp();
  }

  __device__ void push_columns(int32_t count) {
    Slot& slot = acquire();
    int32_t entries[2];
    uint64_t mask[kGroupTiles] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = half * kWarp + lane_;
      entries[half] = i < count ? shared_.staged[i] : 0;
      slot.columns[i] = entries[half] & kColumnMask;
#pragma unroll
      for (int t = 0; t < kGroupTiles; ++t) {
        const uint32_t bits = __ballot_sync(~0u, (entries[half] >> (kColumnBits + t) & 1) != 0);
        mask[t] |= uint64_t{bits} << (half * kWarp);
        if ((entries[half] >> (kColumnBits + t) & 1) != 0) {
          const TileRows rows(group_, t);
          pairs_ += rows.end() - max(rows.position, entries[half] & kColumnMask);
        }
      }
    }
    const int last = count - 1;
    const int32_t last_key =
        __shfl_sync(~0u, last < kWarp ? entries[0] : entries[1], last % kWarp) & kColumnMask;
    if (lane_ == 0) describe(slot, SlotKind::kColumns, 0, last_key, mask);
    gather(entries, count);
    ptx::barrier_arrive_after_copies(&shared_.full[cursor_.stage]);
    __syncwarp();  // all lanes' columns are written before the first lane arrives
    if (lane_ == 0) ptx::barrier_arrive(&shared_.full[cursor_.stage]);
    cursor_.advance();
  }

  // 16 bytes a lane, a row of K and of V by neighbouring lanes, into the swizzled panels.
  __device__ void gather(const int32_t (&entries)[2], int32_t count) {
    constexpr int kChunks = kHeadDim / 8;
    constexpr int kRowsAtOnce = kWarp / kChunks;
    const int64_t slab = int64_t{kv_head_} * arguments_.token_stride;
    const int chunk = lane_ % kChunks;
    const uint32_t k = ptx::shared_address(shared_.k[cursor_.stage]);
    const uint32_t v = ptx::shared_address(shared_.v[cursor_.stage]);
#pragma unroll 4
    for (int first = 0; first < kSlotKeys; first += kRowsAtOnce) {
      const int row = first + lane_ / kChunks;
      const int32_t entry = __shfl_sync(~0u, first < kWarp ? entries[0] : entries[1], row % kWarp);
      const int64_t source = (slab + (entry & kColumnMask)) * kHeadDim + chunk * 8;
      const uint32_t target = chunk / 8 * (kSlotKeys * 128) + row * 128 + ((chunk ^ row) % 8) * 16;
      ptx::copy_16_bytes(k + target, arguments_.k + source, row < count);
      ptx::copy_16_bytes(v + target, arguments_.v + source, row < count);
    }
  }

  // ---- the ring

  __device__ Slot& acquire() {
    ptx::barrier_wait(&shared_.empty[cursor_.stage], cursor_.parity ^ 1);
    return shared_.slots[cursor_.stage];
  }

  __device__ static void describe(Slot& slot, SlotKind kind, int32_t first_key, int32_t last_key,
                                  const uint64_t (&mask)[kGroupTiles]) {
    slot.kind = kind;
    slot.first_key = first_key;
    slot.last_key = last_key;
#pragma unroll
    for (int t = 0; t < kGroupTiles; ++t) slot.mask[t] = mask[t];
  }

  __device__ void push_marker(SlotKind kind, int32_t item) {
    Slot& slot = acquire();
    if (lane_ == 0) {
      slot.kind = kind;
      slot.item = item;
      ptx::barrier_arrive(&shared_.full[cursor_.stage]);
    }
    ptx::barrier_arrive(&shared_.full[cursor_.stage]);
    cursor_.advance();
  }

  // The candidates of all lanes, those without keys left out; columns in between, so that gathering
  // them overlaps with the rest.
  __device__ void push_batch(int32_t key, const uint64_t (&mask)[kGroupTiles]) {
    uint64_t any = 0;
#pragma unroll
    for (int t = 0; t < kGroupTiles; ++t) {
      any |= mask[t];
      count_pairs(TileRows(group_, t), key, mask[t]);
    }
    uint32_t wanted = __ballot_sync(~0u, any != 0);
    while (wanted != 0) {
      const int source = __ffs(static_cast<int>(wanted)) - 1;
      wanted &= wanted - 1;
      uint64_t slot_mask[kGroupTiles];
#pragma unroll
      for (int t = 0; t < kGroupTiles; ++t) slot_mask[t] = __shfl_sync(~0u, mask[t], source);
      push_keys(__shfl_sync(~0u, key, source), slot_mask);
      if (next_column_ < lists_.num_columns) stage_columns();
    }
  }

  __device__ void push_keys(int32_t key, const uint64_t (&mask)[kGroupTiles]) {
    Slot& slot = acquire();
    uint64_t* full = &shared_.full[cursor_.stage];
    if (lane_ == 0) {
      describe(slot, SlotKind::kKeys, key, key + kSlotKeys - 1, mask);
      ptx::barrier_arrive_expecting(full, 2 * Shared::kTileBytes);
      const uint32_t k = ptx::shared_address(shared_.k[cursor_.stage]);
      const uint32_t v = ptx::shared_address(shared_.v[cursor_.stage]);
#pragma unroll
      for (int panel = 0; panel < kHeadDim / 64; ++panel) {
        ptx::copy_box(k + panel * kSlotKeys * 128, k_map_, panel * 64, key, kv_head_, full);
      }
#pragma unroll
      for (int panel = 0; panel < kHeadDim / 64; ++panel) {
        ptx::copy_box(v + panel * kSlotKeys * 128, v_map_, panel * 64, key, kv_head_, full);
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

  __device__ void add_pairs(int32_t head) {
    int64_t sum = pairs_;
#pragma unroll
    for (int delta = kWarp / 2; delta > 0; delta /= 2) sum += __shfl_xor_sync(~0u, sum, delta);
    if (lane_ == 0) {
      atomicAdd(&arguments_.covered_pairs[head], static_cast<unsigned long long>(sum));
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
  int32_t kv_head_ = 0;
  int32_t next_column_ = 0;
  int32_t num_staged_ = 0;
  int64_t pairs_ = 0;
};

}  // namespace millrace::kernels::cuda
