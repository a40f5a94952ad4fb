// SPDX-License-Identifier: Apache-2.0
// Collectives over the memory of the ranks' devices: they move data in every layer.
// Implementations: comm/nccl (one GPU per rank), engine/ranks/staged_communicator.h (any device, by
// way of host memory and a Communicator).
//
// Order: collectives run in a queue of their own, next to the device's operations.
//   device operations      A ---- B ------------------ C
//                           \ follow()                / join(mark)
//   collectives              `--- all_gather -- mark()
// An implementation whose calls return when their work is done has nothing to order. Otherwise a
// call only enqueues: the collective owns the buffers until a later join(), or until the device has
// been waited for.
//
// Every call but allocate() is collective: all ranks make the same calls in the same order, with
// equal sizes. An error breaks the communicator and with it the group. If a peer dies in the
// middle, the device never finishes, so the wait for the device needs its deadline.
//
// Threads: only the device's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "comm/api/communicator.h"
#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

// A point in the order of collectives.
enum class CollectiveMark : int64_t {};

using CommStatsByName = std::map<std::string, CommStats, std::less<>>;
CommStats sum_of(const CommStatsByName& stats);

// Device memory that a communicator moves fastest. Must be destroyed before the communicator and
// its device.
class CollectiveBuffer {
 public:
  virtual ~CollectiveBuffer() = default;
  virtual void* data() const = 0;
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Collectives called from here on run after all operations submitted to the device so far.
  virtual void follow() = 0;
  // Marks the end of all collectives called so far. Only the last kCollectiveMarksKept marks are
  // kept; an older one means the oldest of these.
  virtual CollectiveMark mark() = 0;
  // Operations submitted to the device from here on run after `mark`.
  virtual void join(CollectiveMark mark) = 0;

  // All ranks ask for the same sizes in the same order, but do not wait for each other. kExhausted,
  // with the numbers, if it does not fit. That may happen on one rank only, which must still ask
  // for the rest.
  virtual Result<std::unique_ptr<CollectiveBuffer>> allocate(int64_t bytes) = 0;
  // Frees buffers that were given back and are kept for later allocate() calls. All ranks call it
  // at the same point, and do not wait for each other.
  virtual void trim() = 0;
  // Collective, once all ranks have allocated: afterwards the buffer of the same size and order may
  // be used.
  virtual Result<void> connect(CollectiveBuffer& buffer, Deadline deadline) = 0;

  // `what` names the data that a collective moves: its bytes and seconds are counted under that
  // name, and errors mention it.
  //
  // data[r * bytes ...] = rank r's `bytes`; this rank's are already in place. With memory from
  // allocate() on GPUs, it takes none of their multiprocessors.
  virtual Result<void> all_gather(std::string_view what, void* data, int64_t bytes,
                                  Deadline deadline) = 0;
  // Every rank gets the root's bytes.
  virtual Result<void> broadcast(std::string_view what, void* data, int64_t bytes, int root,
                                 Deadline deadline) = 0;
  // Element-wise sum in place; all ranks get the same bits, in every run.
  virtual Result<void> all_reduce_sum(std::string_view what, float* data, int64_t count,
                                      Deadline deadline) = 0;

  // Whether everything called so far may still succeed; kPeerLost says what failed. Not collective:
  // called while waiting for the device.
  virtual Result<void> check() const = 0;

  // By `what` was moved, for the collectives that are done. Seconds are those in which one ran or
  // waited for other ranks.
  virtual CommStatsByName stats() const = 0;
};

inline constexpr int64_t kCollectiveMarksKept = 64;

}  // namespace millrace::comm
