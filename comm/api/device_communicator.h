// Collectives over the memory of the ranks' devices: what moves every layer. Implementations:
// comm/nccl (a GPU a rank), worker/ranks/staged_communicator.h (any device, by way of host memory and a
// Communicator).
//
// Order: collectives run in a queue of their own beside the device's operations.
//   device operations      A ---- B ------------------ C
//                           \ follow()                / join(mark)
//   collectives              `--- all_gather -- mark()
// An implementation whose calls return when their work is done has nothing to order. Otherwise a
// call only enqueues: buffers are the collective's until a join() or a wait for the device after
// it.
//
// Every call but allocate() is collective: all ranks make the same calls in the same order, with
// equal sizes. An error breaks the communicator and with it the group; a peer that died in the
// middle shows as a device that does not come to an end, so the wait for the device needs its
// deadline.
//
// Threads: the one of the device.
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

// Device memory that a communicator moves best. Ends before the communicator and its device.
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

  // Collectives called from here on come after all operations the device has been given so far.
  virtual void follow() = 0;
  // The end of all collectives called so far. Older ones than the last kCollectiveMarksKept mean the oldest of these.
  virtual CollectiveMark mark() = 0;
  // Operations the device is given from here on come after `mark`.
  virtual void join(CollectiveMark mark) = 0;

  // All ranks ask for the same sizes in the same order, but wait for none: kExhausted with the
  // numbers where it does not fit may be one rank's alone, which asks for the rest all the same.
  virtual Result<std::unique_ptr<CollectiveBuffer>> allocate(int64_t bytes) = 0;
  // What was given back and is kept for later allocate()s, goes. All ranks ask for it at the same
  // point, and wait for none.
  virtual void trim() = 0;
  // Collective, once all ranks have theirs: the buffer of the same size and order may be used.
  virtual Result<void> connect(CollectiveBuffer& buffer, Deadline deadline) = 0;

  // `what` a collective moves is what its bytes and seconds are counted under, and is named in its
  // errors.
  //
  // data[r * bytes ...] = rank r's `bytes`; this rank's are in their place. Of memory from
  // allocate() on GPUs it takes none of their processors.
  virtual Result<void> all_gather(std::string_view what, void* data, int64_t bytes,
                                  Deadline deadline) = 0;
  // The root's bytes everywhere.
  virtual Result<void> broadcast(std::string_view what, void* data, int64_t bytes, int root,
                                 Deadline deadline) = 0;
  // Element-wise sum in place; all ranks get the same bits, in every run.
  virtual Result<void> all_reduce_sum(std::string_view what, float* data, int64_t count,
                                      Deadline deadline) = 0;

  // Whether all that was called so far may still end well; kPeerLost says what failed. Collective in
  // nothing: asked while the device is waited for.
  virtual Result<void> check() const = 0;

  // By what was moved, of the collectives that are done. Seconds are those in which one ran or
  // waited for other ranks.
  virtual CommStatsByName stats() const = 0;
};

inline constexpr int64_t kCollectiveMarksKept = 64;

}  // namespace millrace::comm
