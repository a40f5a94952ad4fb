// The KV store of a rank, sized beside those of the ranks that it shares a machine with.
#pragma once

#include <memory>

#include "common/clock.h"
#include "kvstore/kv_store.h"
#include "worker/runtime/rank_runtime.h"
#include "worker/store/store_pools.h"

namespace millrace::worker {

// Collective, on all ranks or none. The device pool is as large as `runtime` says, whatever
// `options` do; `options.disk_directory` is of all ranks. A rank whose kv heads another stores has no
// pools. From here on `runtime` admits no prompt that a store cannot hold; kInvalidArgument where it
// holds none. `clock`: by which leases end; outlives the store.
Result<std::unique_ptr<kvstore::KvStore>> make_rank_store(const PoolOptions& options,
                                                          RankRuntime& runtime, const Clock& clock,
                                                          Deadline deadline);

}  // namespace millrace::worker
