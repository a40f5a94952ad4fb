// The host pools of the other context-parallel ranks, mapped for reading, since a prompt that runs
// in a lane may begin with pages that any of them holds. Ranks find the pools as decode nodes on
// the same host do (docs/adr/0012-same-host-pulls.md): by a socket, whose name they tell each
// other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "comm/api/communicator.h"
#include "common/clock.h"
#include "common/result.h"
#include "common/system/shared_memory_view.h"
#include "kernels/api/device.h"
#include "kvstore/kv_store.h"
#include "worker/store/pool_locks.h"
#include "worker/store/pool_place.h"

namespace millrace::worker {

class PeerPools {
 public:
  // Collective over `cp`, the context-parallel ranks that store the same heads. kUnsupported where
  // a pool is private, or a rank is on another host or of another user. Only the ranks that see
  // this get the error, so the caller must have the ranks agree to do without. `device` outlives
  // it.
  static Result<std::unique_ptr<PeerPools>> connect(comm::Communicator& cp,
                                                    const kvstore::KvStore& store,
                                                    kernels::Device& device, Deadline deadline);

  // `num_bytes` bytes in a pool of `rank`, its number in the row; empty where the pool has not so
  // many. The owner may overwrite them at any time, so what is read is valid only once its checksum
  // has been found right. Any thread.
  std::span<const std::byte> bytes(int rank, PoolPlace place, int64_t num_bytes) const;
  // Says whether a prompt runs; at first one is assumed to. A thread page-locks the pools for the
  // device piece by piece, each once it is resident. While no prompt runs, it locks one piece after
  // another. While one runs, it locks pieces only after set_used(), with long pauses. Pages in
  // pieces not yet locked come as from any memory that is not locked. Any thread.
  void set_busy(bool busy) { busy_ = busy; }
  // Says that prompts read the pools: locking them is then worth some of a running prompt's time.
  // Any thread.
  void set_used() { used_ = true; }
  // How many bytes are locked.
  int64_t locked_bytes() const { return locked_bytes_; }

 private:
  explicit PeerPools(kernels::Device& device) : locks_(device) {}
  void lock_pools(const std::stop_token& stop);

  std::vector<std::vector<SharedMemoryView>> pools_;  // by rank; none for this rank
  PoolLocks locks_;                                   // destroyed before what it locks
  std::atomic<bool> busy_ = true;
  std::atomic<bool> used_ = false;
  std::atomic<int64_t> locked_bytes_ = 0;
  std::jthread thread_;  // on a device with memory of its own; last: it uses all of the above
};

}  // namespace millrace::worker
