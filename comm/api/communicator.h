// SPDX-License-Identifier: Apache-2.0
// Collectives among a fixed set of ranks, over host memory. Implementations: comm/mpi (processes),
// comm/local (threads of one process, for tests). Collectives over device memory are in
// DeviceCommunicator.
//
// Every call is collective: all ranks of the communicator make the same calls in the same order.
// Every call has a deadline. If it passes, abort() is called, or a peer is known to be dead, the
// call returns an error (kDeadlineExceeded, kCancelled, kPeerLost) and the communicator is broken:
// every later call fails at once with the first error. It cannot be repaired; the group dies as a
// unit. A communicator and all that were split from it break together: abort() of any of them wakes
// this rank's waiting calls in all.
//
// Threads: one thread at a time, except abort(), which any thread may call.
// Buffers are host memory and belong to the caller; they may be reused when the call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

// What this rank received and how long it waited, since construction. split() children are counted
// separately.
struct CommStats {
  int64_t calls = 0;
  int64_t bytes_received = 0;  // payload from other ranks
  double seconds = 0;          // inside calls
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Result<void> barrier(Deadline deadline) = 0;
  // Every rank gets the root's bytes.
  virtual Result<void> broadcast(std::span<std::byte> data, int root, Deadline deadline) = 0;
  // Element-wise sum in place. Every rank sums in the order of ranks, so all get the same bits.
  virtual Result<void> all_reduce_sum(std::span<float> data, Deadline deadline) = 0;
  virtual Result<void> all_reduce_sum(std::span<double> data, Deadline deadline) = 0;
  // receive = rank 0's bytes, rank 1's, ...; counts[r] = bytes of rank r, the same array on all
  // ranks; send.size() == counts[rank()].
  virtual Result<void> all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                                  std::span<const int64_t> counts, Deadline deadline) = 0;

  // Ranks of equal `color` form a new communicator, ordered by `key`. Collective.
  virtual Result<std::unique_ptr<Communicator>> split(int color, int key, Deadline deadline) = 0;

  // Wakes this rank's waiting call and breaks the communicator. Does not reach other ranks: they
  // may find out (kPeerLost), or run into their deadline.
  virtual void abort() noexcept = 0;

  virtual CommStats stats() const = 0;
};

}  // namespace millrace::comm
