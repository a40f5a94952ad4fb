// SPDX-License-Identifier: Apache-2.0
// The KV store of a rank, sized so that those of all ranks on the machine fit together.
#pragma once

#include <memory>

#include "common/clock.h"
#include "engine/runtime/rank_runtime.h"
#include "kvstore/kv_store.h"
#include "worker/store/pool_locker.h"
#include "worker/store/store_pools.h"

namespace millrace::worker {

// Collective; succeeds on all ranks or on none. `runtime` sets the size of the device pool,
// whatever `options` say. `options.disk_directory` is that of all ranks. A rank whose kv heads
// another rank stores has no pools. From here on `runtime` admits no prompt that a store cannot
// hold; kInvalidArgument where a store holds no prompt at all. `clock` decides when leases end, and
// outlives the store. `locker` is given the host pool, and kept as long as that is; null on a device
// whose memory is the host's.
Result<std::unique_ptr<kvstore::KvStore>> make_rank_store(const PoolOptions& options,
                                                          engine::RankRuntime& runtime,
                                                          const Clock& clock,
                                                          std::shared_ptr<PoolLocker> locker,
                                                          Deadline deadline);

}  // namespace millrace::worker
