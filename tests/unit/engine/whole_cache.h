// SPDX-License-Identifier: Apache-2.0
// A sink that collects the K, V and page scores of all ranks in memory, by model head and token or
// page, to compare grids.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "common/units.h"
#include "engine/exchange/partition.h"
#include "engine/kv_sink.h"
#include "kernels/index/tiling.h"
#include "model/weights.h"

namespace millrace::test {

// [layers, kv heads, tokens, head_dim] of the ranks' dtype, K then V.
class WholeCache {
 public:
  WholeCache(const model::ModelConfig& config, int64_t num_tokens, DType dtype = DType::kFloat32)
      : config_(config), num_tokens_(num_tokens), dtype_(dtype) {
    const auto bytes = byte_offset(config.num_layers, 0, 0);
    k_.resize(bytes);
    v_.resize(bytes);
    page_scores_.resize(static_cast<size_t>(config.num_layers * config.num_kv_heads * num_pages()));
  }

  void put(int32_t layer, int32_t kv_head, const engine::TokenRange& range, const void* k,
           const void* v) {
    const std::lock_guard lock(mutex_);
    const auto at = byte_offset(layer, kv_head, range.begin);
    const auto bytes = static_cast<size_t>(range.size() * row_bytes());
    std::memcpy(k_.data() + at, k, bytes);
    std::memcpy(v_.data() + at, v, bytes);
  }

  // `scores`: one for each page.
  void put_page_scores(int32_t layer, int32_t kv_head, std::span<const float> scores) {
    const std::lock_guard lock(mutex_);
    const int64_t head = int64_t{layer} * config_.num_kv_heads + kv_head;
    std::ranges::copy(scores, page_scores_.begin() + head * num_pages());
  }

  int64_t num_pages() const { return ceil_div(num_tokens_, kernels::kPageTokens); }
  int64_t row_bytes() const { return config_.head_dim * dtype_bytes(dtype_); }
  // Tokens [first, first + count) of one layer and kv head.
  std::span<const std::byte> k_rows(int32_t layer, int32_t kv_head, int64_t first,
                                    int64_t count) const {
    return rows(k_, layer, kv_head, first, count);
  }
  std::span<const std::byte> v_rows(int32_t layer, int32_t kv_head, int64_t first,
                                    int64_t count) const {
    return rows(v_, layer, kv_head, first, count);
  }
  // All of a float32 cache.
  std::vector<float> k() const { return floats(k_); }
  std::vector<float> v() const { return floats(v_); }
  const std::vector<float>& page_scores() const { return page_scores_; }

 private:
  size_t byte_offset(int32_t layer, int32_t kv_head, int64_t token) const {
    const int64_t head = int64_t{layer} * config_.num_kv_heads + kv_head;
    return static_cast<size_t>((head * num_tokens_ + token) * row_bytes());
  }
  std::span<const std::byte> rows(const std::vector<std::byte>& all, int32_t layer, int32_t kv_head,
                                  int64_t first, int64_t count) const {
    return std::span(all).subspan(byte_offset(layer, kv_head, first),
                                  static_cast<size_t>(count * row_bytes()));
  }
  std::vector<float> floats(const std::vector<std::byte>& all) const {
    MR_CHECK(dtype_ == DType::kFloat32, "a cache of {}", dtype_name(dtype_));
    std::vector<float> values(all.size() / sizeof(float));
    std::memcpy(values.data(), all.data(), all.size());
    return values;
  }

  model::ModelConfig config_;
  int64_t num_tokens_;
  DType dtype_;
  std::mutex mutex_;
  std::vector<std::byte> k_, v_;
  std::vector<float> page_scores_;  // [layers, kv heads, pages]
};

// The sink of one rank into a WholeCache of the rank's compute dtype.
class WholeCacheSink final : public engine::KvSink {
 public:
  WholeCacheSink(WholeCache& cache, const model::ShardShape& shard, engine::Partition partition,
                 int cp_rank)
      : cache_(cache), shard_(shard), partition_(std::move(partition)), cp_rank_(cp_rank) {}

  Result<void> write_layer(const engine::LayerKv& kv) override {
    const auto& local = kv.local;
    const auto row_at = [&](const void* rows, int64_t row) {
      return static_cast<const std::byte*>(rows) + row * cache_.row_bytes();
    };
    for (int32_t head = 0; head < local.num_kv_heads; ++head) {
      int64_t row = int64_t{head} * local.head_rows();
      for (const auto& range : partition_.ranges(cp_rank_)) {
        cache_.put(kv.layer, shard_.first_kv_head + head, range, row_at(local.k, row),
                   row_at(local.v, row));
        row += range.size();
      }
      cache_.put_page_scores(kv.layer, shard_.first_kv_head + head,
                             kv.page_scores.subspan(static_cast<size_t>(head * kv.num_pages),
                                                    static_cast<size_t>(kv.num_pages)));
    }
    return {};
  }

 private:
  WholeCache& cache_;
  model::ShardShape shard_;
  engine::Partition partition_;
  int cp_rank_;
};

}  // namespace millrace::test
