// The host pools of the other context-parallel ranks, mapped to be read: a prompt that runs in a lane begins
// with pages that all of them hold. They are found as decode nodes of the host find them (docs/adr/0012-same-host-pulls.md):
// by a socket whose name the ranks tell each other.
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
  // Collective over `cp`, the context-parallel ranks that store the same heads. kUnsupported, on those that see it,
  // where a pool is private, or a rank on another host or of another user: then the ranks agree on doing without.
  // `device` outlives it.
  static Result<std::unique_ptr<PeerPools>> connect(comm::Communicator& cp,
                                                    const kvstore::KvStore& store,
                                                    kernels::Device& device, Deadline deadline);

  // `num_bytes` of a rank's pool, by its number in the row; none where there are not so many. Its owner may write them at
  // any time: what is read counts once its checksum is right. Any thread.
  std::span<const std::byte> bytes(int rank, PoolPlace place, int64_t num_bytes) const;
  // Whether a prompt runs; at first one might. What the pools have is page-locked for the device by a thread, piece by
  // piece once a piece is resident: one after the other while nothing runs, and while a prompt does only where set_used(),
  // with long pauses. Until then pages come as from any memory that is not locked. Any thread.
  void set_busy(bool busy) { busy_ = busy; }
  // Prompts read the pools: that they do so faster is worth some of the time of one that runs. Any thread.
  void set_used() { used_ = true; }
  // How many bytes are.
  int64_t locked_bytes() const { return locked_bytes_; }

 private:
  explicit PeerPools(kernels::Device& device) : locks_(device) {}
  void lock_pools(const std::stop_token& stop);

  std::vector<std::vector<SharedMemoryView>> pools_;  // by rank; none of its own
  PoolLocks locks_;                                   // goes before what it locks
  std::atomic<bool> busy_ = true;
  std::atomic<bool> used_ = false;
  std::atomic<int64_t> locked_bytes_ = 0;
  std::jthread thread_;  // on a device with memory of its own; last: it uses all of the above
};

}  // namespace millrace::worker
