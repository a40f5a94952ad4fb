#include "worker/engine/kv_exchange.h"

#include <algorithm>
#include <utility>

namespace millrace::worker {

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
  exchange.cut_prefix(tile_rows);
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.k_));
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.v_));
  MR_RETURN_IF_ERROR(exchange.allocate_staging());
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

// Whole pages of a tile's rows at most: no prefix takes more memory than rows that need not be
// computed do (worker/engine/capacity.h).
void KvExchange::cut_prefix(int64_t tile_rows) {
  if (alone()) return;
  const int64_t page_rows_bytes = kPageTokens * shape_.row_bytes();
  const int64_t max_pages = std::max<int64_t>(tile_rows / kPageTokens, 1);
  for (int rank = 0; rank < cp_->size(); ++rank) {
    const auto pages = prefix_->pages(rank);
    for (int64_t first = 0; first < std::ssize(pages); first += max_pages) {
      PrefixChunk chunk{
          .owner = rank, .first = first, .count = std::min(max_pages, std::ssize(pages) - first)};
      for (int64_t i = 0; i < chunk.count; ++i) {
        chunk.to_slab.push_back(
            {.destination = pages[static_cast<size_t>(first + i)] * page_rows_bytes,
             .source = i * page_rows_bytes,
             .bytes = page_rows_bytes});
      }
      staging_rows_ = std::max(staging_rows_, chunk.count * kPageTokens);
      chunks_.push_back(std::move(chunk));
    }
  }
}

Result<void> KvExchange::allocate_staging() {
  if (staging_rows_ == 0) return {};
  MR_ASSIGN_OR_RETURN(
      staging_, device_->allocate(2 * shape_.num_kv_heads * staging_rows_ * shape_.row_bytes()));
  return {};
}

// The staging memory is used by one chunk after the other: a collective comes after what the device
// was given before, and the device's copies after the collective.
Result<void> KvExchange::bring_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                                      Deadline deadline) {
  if (alone()) {
    const KvPlace slab{.k = k_.own.data(), .v = v_.own.data(), .stride = own_stride()};
    if (prefix_->num_pages() > 0 && loaded.ok()) {
      loaded = source.load(layer, 0, prefix_->num_pages(), slab);
    }
    return {};
  }
  const int64_t plane_bytes = staging_rows_ * shape_.row_bytes();
  const int64_t side_bytes = shape_.num_kv_heads * plane_bytes;
  const KvPlace staged{
      .k = staging_.data(), .v = staging_.as<std::byte>() + side_bytes, .stride = staging_rows_};
  for (const PrefixChunk& chunk : chunks_) {
    if (chunk.owner == cp_->rank() && loaded.ok()) {
      loaded = source.load(layer, chunk.first, chunk.count, staged);
    }
    cp_->follow();
    MR_RETURN_IF_ERROR(
        cp_->broadcast("prefix", staging_.data(), 2 * side_bytes, chunk.owner, deadline));
    cp_->join(cp_->mark());
    for (const auto& [from, to] : {std::pair{staged.k, &k_}, std::pair{staged.v, &v_}}) {
      device_->copy_pieces(
          {.destination = to->slab.data(),
           .destination_plane_bytes = partition_->num_tokens() * shape_.row_bytes(),
           .source = from,
           .source_plane_bytes = plane_bytes,
           .num_planes = shape_.num_kv_heads,
           .pieces = chunk.to_slab});
    }
  }
  return {};
}

Result<void> KvExchange::allocate(Side& side) {
  const int64_t heads_bytes = shape_.num_kv_heads * shape_.row_bytes();
  MR_ASSIGN_OR_RETURN(side.own, device_->allocate(own_stride() * heads_bytes));
  if (alone()) return {};
  MR_ASSIGN_OR_RETURN(side.slab, device_->allocate(partition_->num_tokens() * heads_bytes));
  return {};
}

Result<void> KvExchange::take_buffers() {
  if (alone()) return {};
  const int64_t bytes = cp_->size() * max_rows_ * shape_.num_kv_heads * shape_.row_bytes();
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
  return cp_->size() * tile.first_row * shape_.num_kv_heads * shape_.row_bytes();
}

std::byte* KvExchange::own_place(const Side& side, const Tile& tile) const {
  if (alone()) {
    return side.own.as<std::byte>() +
           (partition_->first_position() + tile.first_row) * shape_.row_bytes();
  }
  return static_cast<std::byte*>(side.gathered->data()) + gathered_offset(tile) +
         cp_->rank() * tile.num_rows * shape_.num_kv_heads * shape_.row_bytes();
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
      tile.num_rows * shape_.num_kv_heads * shape_.row_bytes(), deadline));
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
