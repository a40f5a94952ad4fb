#include "worker/batch/retain_sink.h"

namespace millrace::worker {

Result<RetainSink> RetainSink::create(kernels::Device& device, const model::ModelWeights& weights,
                                      int64_t num_rows) {
  RetainSink sink(device);
  const int64_t bytes = weights.shard.num_kv_heads * num_rows * weights.config.head_dim *
                        dtype_bytes(weights.compute_dtype);
  for (int32_t i = 0; i < weights.config.num_layers; ++i) {
    Layer layer;
    MR_ASSIGN_OR_RETURN(layer.k, device.allocate(bytes));
    MR_ASSIGN_OR_RETURN(layer.v, device.allocate(bytes));
    sink.layers_.push_back(std::move(layer));
  }
  return sink;
}

Result<void> RetainSink::stage_layer(int32_t number, const LocalKv& local) {
  const Layer& layer = layers_[static_cast<size_t>(number)];
  device_->copy(layer.k.data(), local.k, layer.k.bytes());
  device_->copy(layer.v.data(), local.v, layer.v.bytes());
  slabs_.push_back({.k = layer.k.data(),
                    .v = layer.v.data(),
                    .dtype = local.dtype,
                    .num_kv_heads = local.num_kv_heads,
                    .head_dim = local.head_dim,
                    .num_tokens = local.num_rows,
                    .token_stride = local.num_rows});
  return {};
}

}  // namespace millrace::worker
