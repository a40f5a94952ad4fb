// SPDX-License-Identifier: Apache-2.0
// A KV store behind the engine, as in a worker: shows what it costs a prefill to store its pages in
// host memory, and how much of that overlaps with later layers.
#pragma once

#include <memory>

#include "engine/runtime/rank_runtime.h"
#include "kvstore/kv_store.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_sink.h"

namespace millrace::bench {

class PageStore {
 public:
  // `runtime` must outlive it. `host_bytes`: of this rank, for pages and their records. Takes no
  // memory on a rank whose kv heads another rank stores.
  static Result<std::unique_ptr<PageStore>> create(engine::RankRuntime& runtime,
                                                   int64_t host_bytes);

  // Collective. Runs `task` and stores its pages. `total_s` is the time from the request's begin in
  // the store to its last page; then the store forgets the pages. kExhausted on all ranks if one
  // has no room.
  struct Stored {
    engine::PrefillResult result;
    double total_s = 0;
    worker::StoredBytes bytes;  // of all ranks
  };
  Result<Stored> prefill(engine::PrefillTask task, Duration layer_timeout);

 private:
  explicit PageStore(engine::RankRuntime& runtime) : runtime_(runtime) {}

  engine::RankRuntime& runtime_;
  std::unique_ptr<kvstore::KvStore> store_;  // both null if another rank stores its heads
  std::unique_ptr<worker::PageWriter> writer_;
};

}  // namespace millrace::bench
