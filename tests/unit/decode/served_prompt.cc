// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/decode/served_prompt.h"

#include <algorithm>

#include "model/checkpoint/element_conversion.h"
#include "model/load_model_config.h"
#include "tests/support/random_data.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "worker/staging/store_sink.h"
#include "worker/store/make_manifest.h"

namespace millrace::test {

namespace {

constexpr std::chrono::seconds kTimeout{60};

// Passes the same layers to the store under test and to the cache it is compared with.
class BothSinks final : public engine::KvSink {
 public:
  BothSinks(engine::KvSink& first, engine::KvSink& second) : first_(first), second_(second) {}
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override {
    MR_RETURN_IF_ERROR(first_.stage_layer(layer, local));
    return second_.stage_layer(layer, local);
  }
  Result<void> write_layer(const engine::LayerKv& kv) override {
    MR_RETURN_IF_ERROR(first_.write_layer(kv));
    return second_.write_layer(kv);
  }
  Result<void> finish() override {
    MR_RETURN_IF_ERROR(first_.finish());
    return second_.finish();
  }

 private:
  engine::KvSink& first_;
  engine::KvSink& second_;
};

// Passes layers on, in another dtype if it differs.
class RoundingSink final : public engine::KvSink {
 public:
  RoundingSink(engine::KvSink& next, DType dtype) : next_(next), dtype_(dtype) {}
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override {
    return next_.stage_layer(layer, round(local));
  }
  Result<void> write_layer(const engine::LayerKv& kv) override {
    engine::LayerKv rounded = kv;
    rounded.local = round(kv.local);
    return next_.write_layer(rounded);
  }
  Result<void> finish() override { return next_.finish(); }

 private:
  engine::LocalKv round(const engine::LocalKv& local) {
    engine::LocalKv rounded = local;
    rounded.k = round(local, local.k, k_);
    rounded.v = round(local, local.v, v_);
    rounded.dtype = dtype_;
    return rounded;
  }
  const void* round(const engine::LocalKv& local, const void* rows,
                    std::vector<std::byte>& storage) const {
    const int64_t count = local.num_kv_heads * local.num_rows * local.head_dim;
    storage.resize(static_cast<size_t>(count * dtype_bytes(dtype_)));
    model::convert_elements(static_cast<const std::byte*>(rows), local.dtype, count, storage.data(),
                            dtype_);
    return storage.data();
  }

  engine::KvSink& next_;
  DType dtype_;
  std::vector<std::byte> k_, v_;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}
void must(const Result<void>& result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
}

void drop_all_but(const KeptPages& kept, const model::ShardShape& shard, std::vector<int64_t> pages,
                  kvstore::KvStore& store) {
  for (int32_t layer = 0; layer < kept.num_layers(); ++layer) {
    for (int32_t h = 0; h < shard.num_kv_heads; ++h) {
      const int32_t head = shard.first_kv_head + h;
      auto dropped = pages;
      std::erase_if(dropped, [&](int64_t page) { return kept.has(layer, head, page); });
      must(store.drop_pages("prompt-1", layer, head, dropped));
    }
  }
}

}  // namespace

std::vector<int32_t> random_tokens(int64_t count, int32_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random_bits(5, static_cast<uint64_t>(i)) %
                                          static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

std::string event_of(const kvclient::Manifest& manifest) {
  return fmt::format(R"({{"manifest":{}}})", kvclient::to_json(manifest));
}

ServedPrompt::ServedPrompt(comm::Transport& transport, const Clock& clock, const Options& options)
    : config_(must(model::load_model_config(options.model_directory))),
      num_tokens_(static_cast<int64_t>(options.tokens.size())),
      cache_(std::make_unique<WholeCache>(config_, num_tokens_,
                                          options.cache_dtype.value_or(options.compute_dtype))),
      ranks_(static_cast<size_t>(options.grid.tp * options.grid.cp)) {
  run_ranks(num_ranks(), [&](std::unique_ptr<comm::Communicator> world) {
    serve(transport, clock, options, std::move(world));
  });
}

void ServedPrompt::serve(comm::Transport& transport, const Clock& clock, const Options& options,
                         std::unique_ptr<comm::Communicator> world) {
  const int number = world->rank();
  Rank& rank = ranks_[static_cast<size_t>(number)];
  auto rank_settings = rank_options(options.model_directory, options.grid);
  rank_settings.compute_dtype = options.compute_dtype;
  auto runtime = must(engine::RankRuntime::create(std::move(world), rank_settings));
  const auto& shard = runtime->weights().shard;
  const int cp_rank = runtime->grid().cp().rank();
  const DType cache_dtype = options.cache_dtype.value_or(options.compute_dtype);
  const kvstore::KvGeometry geometry{.num_layers = config_.num_layers,
                                     .num_kv_heads = shard.num_kv_heads,
                                     .first_kv_head = shard.first_kv_head,
                                     .head_dim = config_.head_dim,
                                     .dtype = cache_dtype,
                                     .float8 = options.float8};
  const int64_t disk_pages = (int64_t{64} << 20) / geometry.page_bytes();
  const int64_t num_pages = options.device_pages + options.host_pages + disk_pages;
  rank.store =
      must(kvstore::make_kv_store({.device_bytes = options.device_pages * geometry.page_bytes(),
                                   .host_bytes = options.host_pages * geometry.page_bytes() +
                                                 num_pages * geometry.record_bytes(),
                                   .disk_bytes = disk_pages * geometry.page_bytes(),
                                   .disk_directory = disk_.path(),
                                   .geometry = geometry},
                                  clock));
  rank.server = must(worker::KvServer::start(transport, *rank.store, "epoch-1", "127.0.0.1", 0));

  const auto partition = runtime->engine().partition(num_tokens_);
  const auto pages = partition.pages(cp_rank);
  const auto writer = must(worker::PageWriter::create(runtime->device(), *rank.store, geometry, 0));
  worker::StoreSink into_store(runtime->device(), *rank.store, *writer, "prompt-1", pages);
  WholeCacheSink into_cache(*cache_, shard, partition, cp_rank);
  BothSinks into_both(into_store, into_cache);
  RoundingSink rounded(into_both, cache_dtype);
  const bool stores = shard.kv_replica == 0;
  if (stores) must(rank.store->begin_request("prompt-1", num_tokens_, pages));
  const plan::HeadPlan dense(config_.num_layers, config_.num_query_heads, {});
  const auto result = must(runtime->engine().prefill(
      {.token_ids = options.tokens, .plan = &dense, .sink = stores ? &rounded : nullptr},
      kTimeout));
  kvstore::Placement placement;
  if (stores && options.kept) drop_all_but(*options.kept, shard, pages, *rank.store);
  if (stores) placement = must(rank.store->seal("prompt-1", "lease-1", kServedLease));
  const auto shards = must(worker::gather_shards(runtime->grid().world(), rank.server->address(),
                                                 placement, Deadline::after(kTimeout)));
  if (number != 0) return;
  manifest_ =
      must(worker::make_manifest({.request_id = "prompt-1",
                                  .lease_id = "lease-1",
                                  .lease = kServedLease,
                                  .epoch = "epoch-1",
                                  .result = &result,
                                  .kept = options.kept.get(),
                                  .float8 = options.float8.get(),
                                  .ranks = shards},
                                 runtime->weights(), partition, /*prefix=*/{}, options.grid));
  if (options.float8) return;
  manifest_.mutable_layout()->set_dtype(std::string(dtype_name(cache_dtype)));
}

std::vector<std::byte> ServedPrompt::expected_page(int32_t layer, int32_t kv_head,
                                                   int64_t page) const {
  const int64_t rows = std::min<int64_t>(64, num_tokens_ - 64 * page);
  const auto k = cache_->k_rows(layer, kv_head, 64 * page, rows);
  const auto v = cache_->v_rows(layer, kv_head, 64 * page, rows);
  const int64_t half = 64 * cache_->row_bytes();
  std::vector<std::byte> bytes(static_cast<size_t>(2 * half));
  std::copy(k.begin(), k.end(), bytes.begin());
  std::copy(v.begin(), v.end(), bytes.begin() + half);
  return bytes;
}

}  // namespace millrace::test
