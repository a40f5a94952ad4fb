#include "worker/retain_sink.h"

namespace millrace::worker {

Result<void> RetainSink::write_layer(const LayerKv& kv) {
  const auto& local = kv.local;
  const int64_t bytes =
      local.num_kv_heads * local.num_rows * local.head_dim * dtype_bytes(local.dtype);
  MR_ASSIGN_OR_RETURN(auto k, device_.allocate(bytes));
  MR_ASSIGN_OR_RETURN(auto v, device_.allocate(bytes));
  device_.copy(k.data(), local.k, bytes);
  device_.copy(v.data(), local.v, bytes);
  slabs_.push_back({.k = k.data(),
                    .v = v.data(),
                    .dtype = local.dtype,
                    .num_kv_heads = local.num_kv_heads,
                    .head_dim = local.head_dim,
                    .num_tokens = local.num_rows,
                    .token_stride = local.num_rows});
  storage_.push_back(std::move(k));
  storage_.push_back(std::move(v));
  return {};
}

Result<void> FanOutSink::write_layer(const LayerKv& kv) {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->write_layer(kv));
  return {};
}

Result<void> FanOutSink::finish() {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->finish());
  return {};
}

}  // namespace millrace::worker
