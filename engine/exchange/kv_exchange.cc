// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange/kv_exchange.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/units.h"

namespace millrace::engine {

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
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.k_));
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.v_));
  return exchange;
}

void KvExchange::cut_tiles(int64_t tile_rows) {
  const int64_t row_bytes = shape_.row_bytes();
  for (int64_t first = 0; first < max_rows_; first += tile_rows) {
    tiles_.push_back({.first_row = first, .num_rows = std::min(tile_rows, max_rows_ - first)});
  }
  other_tiles_.tile_rows = tile_rows;
  last_tile_.tile_rows = tiles_.back().num_rows;
  for (int r = 0; r < cp_->size(); ++r) {
    int64_t row = 0;  // of the rank
    for (const auto& range : partition_->ranges(r)) {
      for (int64_t position = range.begin; position < range.end;) {
        const auto& tile = tiles_[static_cast<size_t>(row / tile_rows)];
        const int64_t row_in_tile = row - tile.first_row;
        const int64_t count = std::min(range.end - position, tile.num_rows - row_in_tile);
        const kernels::CopyPiece to_slab{
            .destination = position * row_bytes,
            .source = gathered_offset(tile, r) + row_in_tile * row_bytes,
            .bytes = count * row_bytes};
        auto& copies = &tile == &tiles_.back() ? last_tile_ : other_tiles_;
        copies.to_slab.push_back(to_slab);
        if (r == cp_->rank()) {
          copies.to_own.push_back(
              {.destination = row * row_bytes, .source = to_slab.source, .bytes = to_slab.bytes});
        }
        position += count;
        row += count;
      }
    }
  }
}

Result<void> KvExchange::bring_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                                      Deadline deadline) {
  if (!alone()) {
    return cached_.bring(
        source, layer,
        {.k = k_.slab.data(), .v = v_.slab.data(), .stride = partition_->num_tokens()}, loaded,
        deadline);
  }
  if (prefix_->num_pages() > 0 && loaded.ok()) {
    loaded = source.load(layer, 0, prefix_->num_pages(),
                         {.k = k_.own.data(), .v = v_.own.data(), .stride = own_stride()});
  }
  return {};
}

Result<void> KvExchange::allocate(Side& side) {
  MR_ASSIGN_OR_RETURN(side.own, device_->allocate(own_stride() * heads_row_bytes()));
  if (alone()) return {};
  MR_ASSIGN_OR_RETURN(side.slab, device_->allocate(partition_->num_tokens() * heads_row_bytes()));
  return {};
}

Result<void> KvExchange::take_buffers() {
  if (alone()) return {};
  const int64_t bytes = tiles_bytes() + cached_.bytes();
  auto k = cp_->allocate(bytes);
  auto v = cp_->allocate(bytes);  // even if K's failed: all ranks ask for the same
  MR_ASSIGN_OR_RETURN(k_.gathered, std::move(k));
  MR_ASSIGN_OR_RETURN(v_.gathered, std::move(v));
  const auto behind_tiles = [&](const Side& side) {
    return static_cast<std::byte*>(side.gathered->data()) + tiles_bytes();
  };
  cached_.use(behind_tiles(k_), behind_tiles(v_));
  return {};
}

Result<void> KvExchange::connect(Deadline deadline) {
  if (alone()) return {};
  MR_RETURN_IF_ERROR(cp_->connect(*k_.gathered, deadline));
  return cp_->connect(*v_.gathered, deadline);
}

int64_t KvExchange::gathered_offset(const Tile& tile, int rank) const {
  return (cp_->size() * tile.first_row + rank * tile.num_rows) * heads_row_bytes();
}

std::byte* KvExchange::own_place(const Side& side, const Tile& tile) const {
  if (alone()) {
    return side.own.as<std::byte>() +
           (partition_->first_position() + tile.first_row) * shape_.row_bytes();
  }
  return static_cast<std::byte*>(side.gathered->data()) + gathered_offset(tile, cp_->rank());
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
      side.name, static_cast<std::byte*>(side.gathered->data()) + gathered_offset(tile, 0),
      tile.num_rows * heads_row_bytes(), deadline));
  if (number + 2 == num_tiles()) side.all_but_last_arrived = cp_->mark();
  if (number + 1 == num_tiles()) side.all_arrived = cp_->mark();
  return {};
}

// The own rows and all tiles but the last are put in place while the last tile is on its way.
void KvExchange::finish(const Side& side) {
  if (alone()) return;
  const auto copy = [&](int64_t tile_rows, std::span<const kernels::CopyPiece> pieces,
                        const kernels::DeviceBuffer& to, int64_t to_rows) {
    device_->copy_pieces({.destination = to.data(),
                          .destination_plane_bytes = to_rows * shape_.row_bytes(),
                          .source = side.gathered->data(),
                          .source_plane_bytes = tile_rows * shape_.row_bytes(),
                          .num_planes = shape_.num_kv_heads,
                          .pieces = pieces});
  };
  const auto copy_to_slab = [&](const Copies& tiles) {
    copy(tiles.tile_rows, tiles.to_slab, side.slab, partition_->num_tokens());
  };
  for (const auto* tiles : {&other_tiles_, &last_tile_}) {
    copy(tiles->tile_rows, tiles->to_own, side.own, own_rows());
  }
  if (num_tiles() > 1) cp_->join(side.all_but_last_arrived);
  copy_to_slab(other_tiles_);
  cp_->join(side.all_arrived);
  copy_to_slab(last_tile_);
}

void KvExchange::settle() {
  if (!alone()) cp_->join(cp_->mark());
}

}  // namespace millrace::engine
