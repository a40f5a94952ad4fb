#include "worker/kv_exchange.h"

#include <algorithm>

namespace millrace::worker {

Result<KvExchange> KvExchange::create(kernels::Device& device, const Partition& partition,
                                      comm::DeviceCommunicator& cp, const KvShape& shape,
                                      int64_t tile_rows) {
  KvExchange exchange(device, partition, cp, shape);
  for (int r = 0; r < cp.size(); ++r) {
    exchange.most_rows_ = std::max(exchange.most_rows_, partition.num_tokens(r));
  }
  exchange.cut_tiles(tile_rows);
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.k_));
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.v_));
  return exchange;
}

void KvExchange::cut_tiles(int64_t tile_rows) {
  for (int64_t first = 0; first < most_rows_; first += tile_rows) {
    tiles_.push_back({.first_row = first, .num_rows = std::min(tile_rows, most_rows_ - first)});
  }
  const int64_t row_bytes = shape_.row_bytes();
  for (int r = 0; r < cp_->size(); ++r) {
    int64_t row = 0;  // of the rank
    for (const auto& range : partition_->ranges(r)) {
      for (int64_t position = range.begin; position < range.end;) {
        auto& tile = tiles_[static_cast<size_t>(row / tile_rows)];
        const int64_t row_in_tile = row - tile.first_row;
        const int64_t count = std::min(range.end - position, tile.num_rows - row_in_tile);
        tile.pieces.push_back({.destination = position * row_bytes,
                               .source = (r * tile.num_rows + row_in_tile) * row_bytes,
                               .bytes = count * row_bytes});
        position += count;
        row += count;
      }
    }
  }
}

Result<void> KvExchange::allocate(Side& side) {
  const int64_t heads = shape_.num_kv_heads, row_bytes = shape_.row_bytes();
  const int64_t own_bytes = (heads * own_rows() + most_rows_ - own_rows()) * row_bytes;
  MR_ASSIGN_OR_RETURN(side.own[0], device_->allocate(own_bytes));
  if (alone()) return {};
  MR_ASSIGN_OR_RETURN(side.own[1], device_->allocate(own_bytes));
  MR_ASSIGN_OR_RETURN(side.gathered,
                      device_->allocate(heads * cp_->size() * most_rows_ * row_bytes));
  MR_ASSIGN_OR_RETURN(side.slab, device_->allocate(heads * partition_->num_tokens() * row_bytes));
  return {};
}

void KvExchange::advance() {
  live_ = next_;
  if (!alone()) next_ = 1 - next_;
}

LocalKv KvExchange::local() const {
  return {.k = k_.own[live_].data(),
          .v = v_.own[live_].data(),
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_rows = own_rows()};
}

kernels::KvSlab KvExchange::slab() const {
  return {.k = alone() ? k_.own[live_].data() : k_.slab.data(),
          .v = alone() ? v_.own[live_].data() : v_.slab.data(),
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_tokens = partition_->num_tokens(),
          .token_stride = partition_->num_tokens()};
}

Result<void> KvExchange::send(Side& side, int64_t number, Deadline deadline) {
  if (alone()) return {};
  const auto& tile = tiles_[static_cast<size_t>(number)];
  const int64_t heads = shape_.num_kv_heads, row_bytes = shape_.row_bytes();
  const int64_t sent_bytes = tile.num_rows * row_bytes;
  const auto* own = side.own[next_].as<std::byte>() + tile.first_row * row_bytes;
  auto* gathered = side.gathered.as<std::byte>() + heads * cp_->size() * tile.first_row * row_bytes;
  std::vector<comm::DeviceCommunicator::Gather> gathers;
  for (int64_t head = 0; head < heads; ++head) {
    gathers.push_back({.send = own + head * own_rows() * row_bytes,
                       .receive = gathered + head * cp_->size() * sent_bytes,
                       .bytes = sent_bytes});
  }
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather(gathers, deadline));
  if (number + 1 == num_tiles()) side.arrived = cp_->mark();
  return {};
}

void KvExchange::finish(const Side& side) {
  if (alone()) return;
  cp_->join(side.arrived);
  const int64_t heads = shape_.num_kv_heads, row_bytes = shape_.row_bytes();
  for (const auto& tile : tiles_) {
    const int64_t head_rows = cp_->size() * tile.num_rows;
    device_->copy_pieces(
        {.destination = side.slab.data(),
         .destination_plane_bytes = partition_->num_tokens() * row_bytes,
         .source = side.gathered.as<std::byte>() + heads * cp_->size() * tile.first_row * row_bytes,
         .source_plane_bytes = head_rows * row_bytes,
         .num_planes = heads,
         .pieces = tile.pieces});
  }
}

void KvExchange::settle() {
  if (!alone()) cp_->join(cp_->mark());
}

}  // namespace millrace::worker
