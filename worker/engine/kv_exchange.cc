#include "worker/engine/kv_exchange.h"

#include <algorithm>
#include <utility>

#include "common/units.h"

namespace millrace::worker {

namespace {

// Few, since a collective among GPUs takes tens of microseconds however little it moves; and two chunks take no more
// than half of what the prefix's rows would as tiles (worker/engine/capacity.h).
constexpr int64_t kPrefixChunks = 4;
constexpr size_t kChunksOnTheWay = 2;

}  // namespace

Result<KvExchange> KvExchange::create(kernels::Device& device, const Partition& partition,
                                      const PromptPrefix& prefix, comm::DeviceCommunicator& cp,
                                      const KvShape& shape, int64_t tile_rows) {
  MR_CHECK(prefix.num_tokens() == partition.first_position(), "a prefix of {} tokens before {}",
           prefix.num_tokens(), partition.first_position());
  KvExchange exchange(device, partition, prefix, cp, shape);
  for (int r = 0; r < cp.size(); ++r) {
    exchange.max_rows_ = std::max(exchange.max_rows_, partition.num_tokens(r));
  }
  exchange.cut_tiles(tile_rows);
  exchange.cut_prefix();
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.k_));
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.v_));
  return exchange;
}

void KvExchange::cut_tiles(int64_t tile_rows) {
  const int64_t row_bytes = shape_.row_bytes();
  for (int64_t first = 0; first < max_rows_; first += tile_rows) {
    const int64_t num_rows = std::min(tile_rows, max_rows_ - first);
    const int64_t own = std::clamp(own_rows() - first, int64_t{0}, num_rows);
    tiles_.push_back({.first_row = first,
                      .num_rows = num_rows,
                      .to_own = {.destination = first * row_bytes, .bytes = own * row_bytes}});
  }
  for (int r = 0; r < cp_->size(); ++r) {
    int64_t row = 0;  // of the rank
    for (const auto& range : partition_->ranges(r)) {
      for (int64_t position = range.begin; position < range.end;) {
        auto& tile = tiles_[static_cast<size_t>(row / tile_rows)];
        const int64_t row_in_tile = row - tile.first_row;
        const int64_t count = std::min(range.end - position, tile.num_rows - row_in_tile);
        tile.to_slab.push_back(
            {.destination = position * row_bytes,
             .source = (r * shape_.num_kv_heads * tile.num_rows + row_in_tile) * row_bytes,
             .bytes = count * row_bytes});
        position += count;
        row += count;
      }
    }
  }
}

void KvExchange::cut_prefix() {
  if (alone() || prefix_->num_pages() == 0) return;
  std::vector<std::vector<int64_t>> pages;
  size_t most = 0;
  for (int rank = 0; rank < cp_->size(); ++rank) {
    most = std::max(most, pages.emplace_back(prefix_->pages(rank)).size());
  }
  // Of the mean over ranks, not of the rank with most: a prefix may lie on one of them alone.
  const auto pages_together =
      static_cast<size_t>(ceil_div(prefix_->num_pages(), kPrefixChunks * cp_->size()));
  chunk_rows_ = static_cast<int64_t>(pages_together) * kPageTokens;
  const int64_t page_bytes = kPageTokens * shape_.row_bytes();
  for (size_t first = 0; first < most; first += pages_together) {
    PrefixChunk chunk{.first = static_cast<int64_t>(first)};
    for (int rank = 0; rank < cp_->size(); ++rank) {
      const auto& held = pages[static_cast<size_t>(rank)];
      const size_t end = std::min(held.size(), first + pages_together);
      for (size_t i = first; i < end; ++i) {
        if (i > first && held[i] == held[i - 1] + 1) {
          chunk.to_slab.back().bytes += page_bytes;
          continue;
        }
        chunk.to_slab.push_back({.destination = held[i] * page_bytes,
                                 .source = rank * chunk_rows_ * heads_row_bytes() +
                                           static_cast<int64_t>(i - first) * page_bytes,
                                 .bytes = page_bytes});
      }
      if (rank == cp_->rank()) chunk.count = static_cast<int64_t>(std::max(end, first) - first);
    }
    chunks_.push_back(std::move(chunk));
  }
}

std::byte* KvExchange::chunk_place(const Side& side, size_t chunk) const {
  const auto turn = static_cast<int64_t>(chunk % kChunksOnTheWay);
  return static_cast<std::byte*>(side.gathered->data()) + tiles_bytes() + turn * chunk_bytes();
}

// A chunk is gathered while the one before it goes into the slab. It is loaded into its place behind the
// copies that read that place last, and gathered behind both.
Result<void> KvExchange::bring_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                                      Deadline deadline) {
  if (alone()) {
    const KvPlace slab{.k = k_.own.data(), .v = v_.own.data(), .stride = own_stride()};
    if (prefix_->num_pages() > 0 && loaded.ok()) {
      loaded = source.load(layer, 0, prefix_->num_pages(), slab);
    }
    return {};
  }
  const int64_t rank_bytes = chunk_rows_ * heads_row_bytes();
  comm::CollectiveMark before{};
  for (size_t i = 0; i <= chunks_.size(); ++i) {
    comm::CollectiveMark arrived{};
    if (i < chunks_.size()) {
      const PrefixChunk& chunk = chunks_[i];
      std::byte* const k = chunk_place(k_, i);
      std::byte* const v = chunk_place(v_, i);
      if (chunk.count > 0 && loaded.ok()) {
        const int64_t own = cp_->rank() * rank_bytes;
        loaded = source.load(layer, chunk.first, chunk.count,
                             {.k = k + own, .v = v + own, .stride = chunk_rows_});
      }
      cp_->follow();
      MR_RETURN_IF_ERROR(cp_->all_gather("prefix", k, rank_bytes, deadline));
      MR_RETURN_IF_ERROR(cp_->all_gather("prefix", v, rank_bytes, deadline));
      arrived = cp_->mark();
    }
    if (i > 0) {
      cp_->join(before);
      copy_to_slab(i - 1);
    }
    before = arrived;
  }
  return {};
}

void KvExchange::copy_to_slab(size_t chunk) {
  for (const Side* side : {&k_, &v_}) {
    device_->copy_pieces({.destination = side->slab.data(),
                          .destination_plane_bytes = partition_->num_tokens() * shape_.row_bytes(),
                          .source = chunk_place(*side, chunk),
                          .source_plane_bytes = chunk_rows_ * shape_.row_bytes(),
                          .num_planes = shape_.num_kv_heads,
                          .pieces = chunks_[chunk].to_slab});
  }
}

Result<void> KvExchange::allocate(Side& side) {
  MR_ASSIGN_OR_RETURN(side.own, device_->allocate(own_stride() * heads_row_bytes()));
  if (alone()) return {};
  MR_ASSIGN_OR_RETURN(side.slab, device_->allocate(partition_->num_tokens() * heads_row_bytes()));
  return {};
}

Result<void> KvExchange::take_buffers() {
  if (alone()) return {};
  const int64_t bytes = tiles_bytes() + static_cast<int64_t>(kChunksOnTheWay) * chunk_bytes();
  auto k = cp_->allocate(bytes);
  auto v = cp_->allocate(bytes);  // also without K's, as the other ranks
  MR_ASSIGN_OR_RETURN(k_.gathered, std::move(k));
  MR_ASSIGN_OR_RETURN(v_.gathered, std::move(v));
  return {};
}

Result<void> KvExchange::connect(Deadline deadline) {
  if (alone()) return {};
  MR_RETURN_IF_ERROR(cp_->connect(*k_.gathered, deadline));
  return cp_->connect(*v_.gathered, deadline);
}

int64_t KvExchange::gathered_offset(const Tile& tile) const {
  return cp_->size() * tile.first_row * heads_row_bytes();
}

std::byte* KvExchange::own_place(const Side& side, const Tile& tile) const {
  if (alone()) {
    return side.own.as<std::byte>() +
           (partition_->first_position() + tile.first_row) * shape_.row_bytes();
  }
  return static_cast<std::byte*>(side.gathered->data()) + gathered_offset(tile) +
         cp_->rank() * tile.num_rows * heads_row_bytes();
}

KvPlace KvExchange::destination(int64_t number) const {
  const auto& tile = tiles_[static_cast<size_t>(number)];
  return {.k = own_place(k_, tile),
          .v = own_place(v_, tile),
          .stride = alone() ? own_stride() : tile.num_rows};
}

LocalKv KvExchange::local() const {
  const int64_t offset = alone() ? partition_->first_position() * shape_.row_bytes() : 0;
  return {.k = k_.own.as<std::byte>() + offset,
          .v = v_.own.as<std::byte>() + offset,
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_rows = own_rows(),
          .stride = own_stride()};
}

kernels::KvSlab KvExchange::slab() const {
  return {.k = alone() ? k_.own.data() : k_.slab.data(),
          .v = alone() ? v_.own.data() : v_.slab.data(),
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_tokens = partition_->num_tokens(),
          .token_stride = partition_->num_tokens()};
}

Result<void> KvExchange::send(Side& side, int64_t number, Deadline deadline) {
  if (alone()) return {};
  const auto& tile = tiles_[static_cast<size_t>(number)];
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather(
      side.name, static_cast<std::byte*>(side.gathered->data()) + gathered_offset(tile),
      tile.num_rows * heads_row_bytes(), deadline));
  if (number + 1 == num_tiles()) side.arrived = cp_->mark();
  return {};
}

void KvExchange::finish(const Side& side) {
  if (alone()) return;
  cp_->join(side.arrived);
  const int64_t row_bytes = shape_.row_bytes();
  for (const auto& tile : tiles_) {
    device_->copy_pieces(
        {.destination = side.slab.data(),
         .destination_plane_bytes = partition_->num_tokens() * row_bytes,
         .source = static_cast<const std::byte*>(side.gathered->data()) + gathered_offset(tile),
         .source_plane_bytes = tile.num_rows * row_bytes,
         .num_planes = shape_.num_kv_heads,
         .pieces = tile.to_slab});
    device_->copy_pieces({.destination = side.own.data(),
                          .destination_plane_bytes = own_rows() * row_bytes,
                          .source = own_place(side, tile),
                          .source_plane_bytes = tile.num_rows * row_bytes,
                          .num_planes = shape_.num_kv_heads,
                          .pieces = std::span(&tile.to_own, 1)});
  }
}

void KvExchange::settle() {
  if (!alone()) cp_->join(cp_->mark());
}

}  // namespace millrace::worker
