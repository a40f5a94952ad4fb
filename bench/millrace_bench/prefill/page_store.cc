// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/page_store.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/ranks/agreement.h"

namespace millrace::bench {

namespace {

constexpr const char* kRequest = "bench";

worker::StoredBytes sum_of(const std::vector<worker::StoredBytes>& ranks) {
  worker::StoredBytes sum;
  for (const auto& rank : ranks) {
    sum.total += rank.total;
    sum.while_computing += rank.while_computing;
  }
  return sum;
}

}  // namespace

Result<std::unique_ptr<PageStore>> PageStore::create(engine::RankRuntime& runtime,
                                                     int64_t host_bytes) {
  std::unique_ptr<PageStore> pages(new PageStore(runtime));
  const auto& weights = runtime.weights();
  if (weights.shard.kv_replica != 0) return pages;
  const kvstore::KvGeometry geometry{.num_layers = weights.config.num_layers,
                                     .num_kv_heads = weights.shard.num_kv_heads,
                                     .first_kv_head = weights.shard.first_kv_head,
                                     .head_dim = weights.config.head_dim,
                                     .dtype = weights.compute_dtype};
  MR_ASSIGN_OR_RETURN(
      pages->store_,
      kvstore::make_kv_store({.host_bytes = host_bytes, .promotes = false, .geometry = geometry},
                             Clock::steady()));
  const int num_threads = std::min(worker::kMaxPageWriters, runtime.cores().num_threads);
  MR_ASSIGN_OR_RETURN(pages->writer_, worker::PageWriter::create(runtime.device(), *pages->store_,
                                                                 geometry, num_threads));
  return pages;
}

Result<PageStore::Stored> PageStore::prefill(engine::PrefillTask task, Duration layer_timeout) {
  auto& world = runtime_.grid().world();
  const Stopwatch watch;
  const auto num_tokens = std::ssize(task.token_ids);
  const auto pages = runtime_.engine().partition(num_tokens).pages(runtime_.grid().cp().rank());
  const auto begun = store_ ? store_->begin_request(kRequest, num_tokens, pages) : Result<void>();
  MR_RETURN_IF_ERROR(engine::all_agree(world, begun, Deadline::after(layer_timeout)));
  std::optional<worker::StoreSink> sink;
  if (store_) sink.emplace(runtime_.device(), *store_, *writer_, kRequest, pages);
  task.sink = sink ? &*sink : nullptr;
  Stored stored;
  MR_ASSIGN_OR_RETURN(stored.result, runtime_.engine().prefill(task, layer_timeout));
  stored.total_s = watch.elapsed_s();
  const auto own = sink ? sink->stored() : worker::StoredBytes();
  sink.reset();
  if (store_) store_->abort(kRequest);
  MR_ASSIGN_OR_RETURN(const auto ranks,
                      engine::all_agree_on_values(world, Result<worker::StoredBytes>(own),
                                                  Deadline::after(layer_timeout)));
  stored.bytes = sum_of(ranks);
  return stored;
}

}  // namespace millrace::bench
