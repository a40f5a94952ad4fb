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

// Staging takes as many rows as a tile of products: no prefix takes more memory than rows that need not
// be computed do (worker/engine/capacity.h).
void KvExchange::cut_prefix(int64_t tile_rows) {
  if (alone() || prefix_->num_pages() == 0) return;
  std::vector<std::vector<int64_t>> pages;
  size_t most = 0;
  for (int rank = 0; rank < cp_->size(); ++rank) {
    most = std::max(most, pages.emplace_back(prefix_->pages(rank)).size());
  }
  const int64_t staged_rows = tile_rows / (std::ssize(staging_) * cp_->size());
  const auto pages_together =
      std::min(most, static_cast<size_t>(std::max<int64_t>(staged_rows / kPageTokens, 1)));
  staging_rows_ = static_cast<int64_t>(pages_together) * kPageTokens;
  const int64_t page_bytes = kPageTokens * shape_.row_bytes();
  for (size_t first = 0; first < most; first += pages_together) {
    PrefixChunk chunk{.first = static_cast<int64_t>(first)};
    for (int rank = 0; rank < cp_->size(); ++rank) {
      const auto& held = pages[static_cast<size_t>(rank)];
      const size_t end = std::min(held.size(), first + pages_together);
      for (size_t i = first; i < end; ++i) {
        chunk.to_slab.push_back({.destination = held[i] * page_bytes,
                                 .source = rank * 2 * staged_side_bytes() +
                                           static_cast<int64_t>(i - first) * page_bytes,
                                 .bytes = page_bytes});
      }
      if (rank == cp_->rank()) chunk.count = static_cast<int64_t>(std::max(end, first) - first);
    }
    chunks_.push_back(std::move(chunk));
  }
}

Result<void> KvExchange::allocate_staging() {
  if (chunks_.empty()) return {};
  for (auto& buffer : staging_) {
    MR_ASSIGN_OR_RETURN(buffer, device_->allocate(cp_->size() * 2 * staged_side_bytes()));
  }
  return {};
}

// A chunk is gathered while the one before it goes into the slab. It is loaded into a staging buffer
// behind the copies that read that buffer last, and gathered behind both.
Result<void> KvExchange::bring_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                                      Deadline deadline) {
  if (alone()) {
    const KvPlace slab{.k = k_.own.data(), .v = v_.own.data(), .stride = own_stride()};
    if (prefix_->num_pages() > 0 && loaded.ok()) {
      loaded = source.load(layer, 0, prefix_->num_pages(), slab);
    }
    return {};
  }
  comm::CollectiveMark before{};
  for (size_t i = 0; i <= chunks_.size(); ++i) {
    const auto& staging = staging_[i % staging_.size()];
    comm::CollectiveMark arrived{};
    if (i < chunks_.size()) {
      const PrefixChunk& chunk = chunks_[i];
      std::byte* own = staging.as<std::byte>() + cp_->rank() * 2 * staged_side_bytes();
      if (chunk.count > 0 && loaded.ok()) {
        loaded = source.load(layer, chunk.first, chunk.count,
                             {.k = own, .v = own + staged_side_bytes(), .stride = staging_rows_});
      }
      cp_->follow();
      MR_RETURN_IF_ERROR(
          cp_->all_gather("prefix", staging.data(), 2 * staged_side_bytes(), deadline));
      arrived = cp_->mark();
    }
    if (i > 0) {
      cp_->join(before);
      copy_to_slab(chunks_[i - 1], staging_[(i - 1) % staging_.size()]);
    }
    before = arrived;
  }
  return {};
}

void KvExchange::copy_to_slab(const PrefixChunk& chunk, const kernels::DeviceBuffer& staging) {
  const std::byte* const k = staging.as<std::byte>();
  for (const auto& [from, to] : {std::pair{k, &k_}, std::pair{k + staged_side_bytes(), &v_}}) {
    device_->copy_pieces({.destination = to->slab.data(),
                          .destination_plane_bytes = partition_->num_tokens() * shape_.row_bytes(),
                          .source = from,
                          .source_plane_bytes = staging_rows_ * shape_.row_bytes(),
                          .num_planes = shape_.num_kv_heads,
                          .pieces = chunk.to_slab});
  }
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
