// SPDX-License-Identifier: Apache-2.0
// The host pools of the other context-parallel ranks, mapped for reading, since a prompt that runs
// in a lane may begin with pages that any of them holds. Ranks find the pools as decode nodes on
// the same host do (docs/adr/0012-same-host-pulls.md): by a socket, whose name they tell each
// other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/api/communicator.h"
#include "common/clock.h"
#include "common/result.h"
#include "common/system/shared_memory_view.h"
#include "kernels/api/device_memory.h"
#include "kvstore/leased_pages.h"
#include "worker/store/pool_locker.h"
#include "worker/store/pool_place.h"

namespace millrace::worker {

class PeerPools {
 public:
  // Collective over `cp`, the context-parallel ranks that store the same heads. kUnsupported where
  // a pool is private, or a rank is on another host or of another user. Only the ranks that see
  // this get the error, so the caller must have the ranks agree to do without. `device` outlives
  // it.
  static Result<std::unique_ptr<PeerPools>> connect(comm::Communicator& cp,
                                                    const kvstore::LeasedPages& store,
                                                    kernels::DeviceMemory& device,
                                                    Deadline deadline);

  // `num_bytes` bytes in a pool of `rank`, its number in the row; empty where the pool has not so
  // many. The owner may overwrite them at any time, so what is read is valid only once its checksum
  // has been found right. Any thread.
  std::span<const std::byte> bytes(int rank, PoolPlace place, int64_t num_bytes) const;
  // Whether a prompt runs; at first one is assumed to. The pools are page-locked for the device
  // (PoolLocker); while a prompt runs, only after set_used(). Any thread.
  void set_busy(bool busy) {
    if (locker_) locker_->set_busy(busy);
  }
  // Says that prompts read the pools. Any thread.
  void set_used() {
    if (locker_) locker_->lock_while_busy();
  }
  // How many bytes are locked.
  int64_t locked_bytes() const { return locker_ ? locker_->locked_bytes() : 0; }

 private:
  PeerPools() = default;
  void lock_pools();

  std::vector<std::vector<SharedMemoryView>> pools_;  // by rank; none for this rank
  std::optional<PoolLocker> locker_;  // on a device with memory of its own; last: it uses the pools
};

}  // namespace millrace::worker
