#include "worker/kv_exchange.h"

#include <vector>

namespace millrace::worker {

Result<KvExchange> KvExchange::create(kernels::Device& device, const Partition& partition,
                                      comm::Communicator& cp, int32_t num_kv_heads,
                                      int32_t head_dim, DType dtype) {
  KvExchange exchange(device, partition, cp);
  exchange.num_kv_heads_ = num_kv_heads;
  exchange.head_dim_ = head_dim;
  exchange.dtype_ = dtype;
  const int64_t row_bytes = head_dim * dtype_bytes(dtype);
  const int64_t local_bytes = num_kv_heads * partition.num_tokens(cp.rank()) * row_bytes;
  MR_ASSIGN_OR_RETURN(exchange.local_k_, device.allocate(local_bytes));
  MR_ASSIGN_OR_RETURN(exchange.local_v_, device.allocate(local_bytes));
  if (cp.size() > 1) {
    const int64_t head_bytes = partition.num_tokens() * row_bytes;
    MR_ASSIGN_OR_RETURN(exchange.slab_k_, device.allocate(num_kv_heads * head_bytes));
    MR_ASSIGN_OR_RETURN(exchange.slab_v_, device.allocate(num_kv_heads * head_bytes));
    MR_ASSIGN_OR_RETURN(exchange.by_rank_, device.allocate(head_bytes));
    MR_ASSIGN_OR_RETURN(exchange.sent_, kernels::HostWindow::create(
                                            device, partition.num_tokens(cp.rank()) * row_bytes));
    MR_ASSIGN_OR_RETURN(exchange.received_, kernels::HostWindow::create(device, head_bytes));
  }
  return exchange;
}

LocalKv KvExchange::local() const {
  return {.k = local_k_.data(),
          .v = local_v_.data(),
          .dtype = dtype_,
          .num_kv_heads = num_kv_heads_,
          .head_dim = head_dim_,
          .num_rows = partition_->num_tokens(cp_->rank())};
}

kernels::KvSlab KvExchange::slab() const {
  const bool alone = cp_->size() == 1;
  return {.k = alone ? local_k_.data() : slab_k_.data(),
          .v = alone ? local_v_.data() : slab_v_.data(),
          .dtype = dtype_,
          .num_kv_heads = num_kv_heads_,
          .head_dim = head_dim_,
          .num_tokens = partition_->num_tokens(),
          .token_stride = partition_->num_tokens()};
}

Result<void> KvExchange::gather(Deadline deadline) {
  if (cp_->size() == 1) return {};
  const int64_t row_bytes = head_dim_ * dtype_bytes(dtype_);
  const int64_t local_bytes = partition_->num_tokens(cp_->rank()) * row_bytes;
  const int64_t slab_bytes = partition_->num_tokens() * row_bytes;
  for (int32_t head = 0; head < num_kv_heads_; ++head) {
    MR_RETURN_IF_ERROR(gather_head(local_k_.as<std::byte>() + head * local_bytes,
                                   slab_k_.as<std::byte>() + head * slab_bytes, deadline));
    MR_RETURN_IF_ERROR(gather_head(local_v_.as<std::byte>() + head * local_bytes,
                                   slab_v_.as<std::byte>() + head * slab_bytes, deadline));
  }
  return {};
}

Result<void> KvExchange::gather_head(const void* local, void* slab, Deadline deadline) {
  const int64_t row_bytes = head_dim_ * dtype_bytes(dtype_);
  std::vector<int64_t> counts;
  for (int r = 0; r < cp_->size(); ++r) counts.push_back(partition_->num_tokens(r) * row_bytes);
  MR_ASSIGN_OR_RETURN(const auto own,
                      sent_->read(local, counts[static_cast<size_t>(cp_->rank())], deadline));
  MR_ASSIGN_OR_RETURN(const auto all, received_->fill(by_rank_.data(), by_rank_.bytes(), deadline));
  MR_RETURN_IF_ERROR(cp_->all_gather(own, all, counts, deadline));
  received_->write(by_rank_.data(), by_rank_.bytes());
  const auto* source = by_rank_.as<std::byte>();
  for (int r = 0; r < cp_->size(); ++r) {
    for (const auto& range : partition_->ranges(r)) {
      device_->copy(static_cast<std::byte*>(slab) + range.begin * row_bytes, source,
                    range.size() * row_bytes);
      source += range.size() * row_bytes;
    }
  }
  return {};
}

}  // namespace millrace::worker
