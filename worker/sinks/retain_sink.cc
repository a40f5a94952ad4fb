// SPDX-License-Identifier: Apache-2.0
#include "worker/sinks/retain_sink.h"

#include <algorithm>
#include <utility>

#include "common/page_tokens.h"

namespace millrace::worker {

Result<RetainSink> RetainSink::create(kernels::Device& device, const model::ModelWeights& weights,
                                      int64_t num_rows, const KvScales* float8) {
  RetainSink sink(device, float8, weights.shard.first_kv_head);
  const int64_t elements = weights.shard.num_kv_heads * num_rows * weights.config.head_dim;
  const int64_t bytes = elements * dtype_bytes(weights.compute_dtype);
  if (float8 != nullptr) {
    MR_ASSIGN_OR_RETURN(sink.codes_, device.allocate(num_rows * weights.config.head_dim));
  }
  for (int32_t i = 0; i < weights.config.num_layers; ++i) {
    Layer layer;
    MR_ASSIGN_OR_RETURN(layer.k, device.allocate(bytes));
    MR_ASSIGN_OR_RETURN(layer.v, device.allocate(bytes));
    sink.layers_.push_back(std::move(layer));
  }
  return sink;
}

Result<void> RetainSink::stage_layer(int32_t number, const engine::LocalKv& local) {
  const Layer& layer = layers_[static_cast<size_t>(number)];
  device_->copy(layer.k.data(), local.k, layer.k.bytes());
  device_->copy(layer.v.data(), local.v, layer.v.bytes());
  if (float8_ != nullptr) {
    for (int32_t head = 0; head < local.num_kv_heads; ++head) {
      const KvScale& scale = float8_->of(number, first_kv_head_ + head);
      round(layer.k, local, head, scale.k);
      round(layer.v, local, head, scale.v);
    }
  }
  slabs_.push_back({.k = layer.k.data(),
                    .v = layer.v.data(),
                    .dtype = local.dtype,
                    .num_kv_heads = local.num_kv_heads,
                    .head_dim = local.head_dim,
                    .num_tokens = local.num_rows,
                    .token_stride = local.num_rows});
  return {};
}

void RetainSink::round(const kernels::DeviceBuffer& rows, const engine::LocalKv& local,
                       int32_t head, float scale) {
  const int64_t count = local.num_rows * local.head_dim;
  auto* x = rows.as<std::byte>() + head * count * dtype_bytes(local.dtype);
  auto* codes = codes_.as<Float8>();
  device_->float8_encode(
      {.x = x, .dtype = local.dtype, .codes = codes, .count = count, .scale = scale});
  device_->float8_decode(
      {.codes = codes, .x = x, .dtype = local.dtype, .count = count, .scale = scale});
}

Result<void> RetainSink::keep(const KeptPages& kept, std::span<const int64_t> pages,
                              int32_t first_kv_head, Deadline deadline) {
  for (size_t layer = 0; layer < slabs_.size(); ++layer) {
    const auto& slab = slabs_[layer];
    std::vector<std::vector<Rows>> rows(static_cast<size_t>(slab.num_kv_heads));
    for (int32_t head = 0; head < slab.num_kv_heads; ++head) {
      auto& positions = positions_.emplace_back();
      for (size_t i = 0; i < pages.size(); ++i) {
        if (!kept.has(static_cast<int32_t>(layer), first_kv_head + head, pages[i])) continue;
        const int64_t row = static_cast<int64_t>(i) * kPageTokens;
        const int64_t count = std::min(kPageTokens, slab.num_tokens - row);
        rows[static_cast<size_t>(head)].push_back({.first = row, .count = count});
        for (int64_t t = 0; t < count; ++t) {
          positions.push_back(static_cast<int32_t>(pages[i] * kPageTokens + t));
        }
      }
    }
    MR_RETURN_IF_ERROR(keep_rows(layer, rows, deadline));
  }
  // The positions no longer move in memory.
  for (size_t i = 0; i < heads_.size(); ++i) heads_[i].positions = positions_[i];
  slabs_.clear();
  return {};
}

Result<void> RetainSink::keep_rows(size_t layer, std::span<const std::vector<Rows>> rows,
                                   Deadline deadline) {
  const auto& slab = slabs_[layer];
  const int64_t row_bytes = int64_t{slab.head_dim} * dtype_bytes(slab.dtype);
  int64_t num_rows = 0;
  for (const auto& of_head : rows) {
    for (const Rows& run : of_head) num_rows += run.count;
  }
  Layer kept;
  // A rank may have none left.
  MR_ASSIGN_OR_RETURN(kept.k, device_->allocate(std::max<int64_t>(1, num_rows) * row_bytes));
  MR_ASSIGN_OR_RETURN(kept.v, device_->allocate(std::max<int64_t>(1, num_rows) * row_bytes));
  int64_t next = 0;
  for (size_t head = 0; head < rows.size(); ++head) {
    const int64_t first = next;
    for (const Rows& run : rows[head]) {
      const int64_t from = static_cast<int64_t>(head) * slab.token_stride + run.first;
      const auto copy = [&](kernels::DeviceBuffer& to, const void* all) {
        device_->copy(to.as<std::byte>() + next * row_bytes,
                      static_cast<const std::byte*>(all) + from * row_bytes, run.count * row_bytes);
      };
      copy(kept.k, slab.k);
      copy(kept.v, slab.v);
      next += run.count;
    }
    heads_.push_back({.kv = {.k = kept.k.as<std::byte>() + first * row_bytes,
                             .v = kept.v.as<std::byte>() + first * row_bytes,
                             .dtype = slab.dtype,
                             .num_kv_heads = 1,
                             .head_dim = slab.head_dim,
                             .num_tokens = next - first,
                             .token_stride = next - first},
                      .positions = {}});
  }
  // Wait for the copies before their sources are freed.
  MR_RETURN_IF_ERROR(device_->synchronize(deadline));
  layers_[layer] = std::move(kept);
  return {};
}

}  // namespace millrace::worker
