// A KV store behind the engine, as a worker has: what it costs a prefill that pages leave for host
// memory, and how much of that goes on beside later layers.
#pragma once

#include <memory>

#include "kvstore/kv_store.h"
#include "worker/runtime/rank_runtime.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_sink.h"

namespace millrace::bench {

class PageStore {
 public:
  // `runtime` outlives it. `host_bytes`: of this rank, for pages and their records; takes no memory
  // on ranks whose kv heads another stores.
  static Result<std::unique_ptr<PageStore>> create(worker::RankRuntime& runtime,
                                                   int64_t host_bytes);

  // Collective. Runs `task` with its pages going to the store, which forgets them when the clock has
  // been read: `total_s` is the time from the request's begin in the store to its last page.
  // kExhausted on all ranks where one has no room.
  struct Stored {
    worker::PrefillResult result;
    double total_s = 0;
    worker::StoredBytes bytes;  // by all ranks
  };
  Result<Stored> prefill(worker::PrefillTask task, Duration layer_timeout);

 private:
  explicit PageStore(worker::RankRuntime& runtime) : runtime_(runtime) {}

  worker::RankRuntime& runtime_;
  std::unique_ptr<kvstore::KvStore> store_;  // both null where another rank stores
  std::unique_ptr<worker::PageWriter> writer_;
};

}  // namespace millrace::bench
