// A sink that puts the K and V of all ranks together in memory, by model head and token, for
// comparison between grids.
#pragma once

#include <cstring>
#include <mutex>
#include <vector>

#include "model/weights.h"
#include "worker/kv_sink.h"
#include "worker/partition.h"

namespace millrace::test {

// [layers, kv heads, tokens, head_dim] of float32, K then V.
class WholeCache {
 public:
  WholeCache(const model::ModelConfig& config, int64_t num_tokens)
      : config_(config), num_tokens_(num_tokens) {
    const auto elements = static_cast<size_t>(int64_t{config.num_layers} * config.num_kv_heads *
                                              num_tokens * config.head_dim);
    k_.resize(elements);
    v_.resize(elements);
  }

  void put(int32_t layer, int32_t kv_head, const worker::TokenRange& range, const float* k,
           const float* v) {
    const std::lock_guard lock(mutex_);
    const auto at =
        ((int64_t{layer} * config_.num_kv_heads + kv_head) * num_tokens_ + range.begin) *
        config_.head_dim;
    const auto bytes = static_cast<size_t>(range.size() * config_.head_dim) * sizeof(float);
    std::memcpy(k_.data() + at, k, bytes);
    std::memcpy(v_.data() + at, v, bytes);
  }

  const std::vector<float>& k() const { return k_; }
  const std::vector<float>& v() const { return v_; }

 private:
  model::ModelConfig config_;
  int64_t num_tokens_;
  std::mutex mutex_;
  std::vector<float> k_, v_;
};

// One rank's way into a WholeCache. float32 only.
class WholeCacheSink final : public worker::KvSink {
 public:
  WholeCacheSink(WholeCache& cache, const model::ShardShape& shard, worker::Partition partition,
                 int cp_rank)
      : cache_(cache), shard_(shard), partition_(std::move(partition)), cp_rank_(cp_rank) {}

  Result<void> write_layer(const worker::LayerKv& kv) override {
    const auto& local = kv.local;
    for (int32_t head = 0; head < local.num_kv_heads; ++head) {
      int64_t row = int64_t{head} * local.num_rows;
      for (const auto& range : partition_.ranges(cp_rank_)) {
        cache_.put(kv.layer, shard_.first_kv_head + head, range,
                   static_cast<const float*>(local.k) + row * local.head_dim,
                   static_cast<const float*>(local.v) + row * local.head_dim);
        row += range.size();
      }
    }
    return {};
  }

 private:
  WholeCache& cache_;
  model::ShardShape shard_;
  worker::Partition partition_;
  int cp_rank_;
};

}  // namespace millrace::test
