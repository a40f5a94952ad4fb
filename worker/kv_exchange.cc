#include "worker/kv_exchange.h"

#include <algorithm>

namespace millrace::worker {

Result<KvExchange> KvExchange::create(kernels::Device& device, const Partition& partition,
                                      comm::DeviceCommunicator& cp, int32_t num_kv_heads,
                                      int32_t head_dim, DType dtype) {
  KvExchange exchange(device, partition, cp);
  exchange.num_kv_heads_ = num_kv_heads;
  exchange.head_dim_ = head_dim;
  exchange.dtype_ = dtype;
  for (int r = 0; r < cp.size(); ++r) {
    exchange.most_rows_ = std::max(exchange.most_rows_, partition.num_tokens(r));
  }
  const int64_t row_bytes = head_dim * dtype_bytes(dtype);
  for (int r = 0; r < cp.size(); ++r) {
    int64_t source = r * exchange.most_rows_ * row_bytes;
    for (const auto& range : partition.ranges(r)) {
      const int64_t bytes = range.size() * row_bytes;
      exchange.pieces_.push_back(
          {.destination = range.begin * row_bytes, .source = source, .bytes = bytes});
      source += bytes;
    }
  }
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.k_));
  MR_RETURN_IF_ERROR(exchange.allocate(exchange.v_));
  return exchange;
}

Result<void> KvExchange::allocate(Side& side) {
  const int64_t row_bytes = head_dim_ * dtype_bytes(dtype_);
  const int64_t room = most_rows_ - own_rows();
  MR_ASSIGN_OR_RETURN(side.local,
                      device_->allocate((num_kv_heads_ * own_rows() + room) * row_bytes));
  if (cp_->size() == 1) return {};
  const int64_t gathered_rows = num_kv_heads_ * cp_->size() * most_rows_;
  MR_ASSIGN_OR_RETURN(side.gathered, device_->allocate(gathered_rows * row_bytes));
  MR_ASSIGN_OR_RETURN(side.slab,
                      device_->allocate(num_kv_heads_ * partition_->num_tokens() * row_bytes));
  return {};
}

LocalKv KvExchange::local() const {
  return {.k = local_k(),
          .v = local_v(),
          .dtype = dtype_,
          .num_kv_heads = num_kv_heads_,
          .head_dim = head_dim_,
          .num_rows = own_rows()};
}

kernels::KvSlab KvExchange::slab() const {
  const bool alone = cp_->size() == 1;
  return {.k = alone ? local_k() : k_.slab.data(),
          .v = alone ? local_v() : v_.slab.data(),
          .dtype = dtype_,
          .num_kv_heads = num_kv_heads_,
          .head_dim = head_dim_,
          .num_tokens = partition_->num_tokens(),
          .token_stride = partition_->num_tokens()};
}

Result<void> KvExchange::begin(Deadline deadline) {
  if (cp_->size() == 1) return {};
  cp_->follow();
  MR_RETURN_IF_ERROR(send(k_, deadline));
  return send(v_, deadline);
}

Result<void> KvExchange::send(Side& side, Deadline deadline) {
  const int64_t row_bytes = head_dim_ * dtype_bytes(dtype_);
  const int64_t sent_bytes = most_rows_ * row_bytes;
  std::vector<comm::DeviceCommunicator::Gather> heads;
  for (int32_t head = 0; head < num_kv_heads_; ++head) {
    heads.push_back({.send = side.local.as<std::byte>() + head * own_rows() * row_bytes,
                     .receive = side.gathered.as<std::byte>() + head * cp_->size() * sent_bytes,
                     .bytes = sent_bytes});
  }
  MR_RETURN_IF_ERROR(cp_->all_gather(heads, deadline));
  side.arrived = cp_->mark();
  return {};
}

void KvExchange::finish(const Side& side) {
  if (cp_->size() == 1) return;
  const int64_t row_bytes = head_dim_ * dtype_bytes(dtype_);
  cp_->join(side.arrived);
  device_->copy_pieces({.destination = side.slab.data(),
                        .destination_plane_bytes = partition_->num_tokens() * row_bytes,
                        .source = side.gathered.data(),
                        .source_plane_bytes = cp_->size() * most_rows_ * row_bytes,
                        .num_planes = num_kv_heads_,
                        .pieces = pieces_});
}

}  // namespace millrace::worker
