// SPDX-License-Identifier: Apache-2.0
// Rank 0's view of the coordinator: messages in, messages out. ControlClient implements it over
// TCP; tests script one in memory.
#pragma once

#include <optional>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "protocol/control_messages.pb.h"

namespace millrace::worker {

struct ControlEvent {
  enum class Kind {
    kConnected,     // registered
    kDisconnected,  // `why`; what was running has no listener any more
    kRefused,       // `why`; the group will not be admitted, and the client has given up
    kMessage,       // any message but a heartbeat
  };
  Kind kind = Kind::kMessage;
  std::string why;
  protocol::Envelope message;
  std::optional<TimePoint> received_at;  // none: just now
};

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  // The next event, if there is one by the deadline. Events come in order and are never dropped.
  virtual std::optional<ControlEvent> wait(Deadline deadline) = 0;
  std::optional<ControlEvent> poll() { return wait(Deadline::after(Duration::zero())); }

  // Queues the message for the present connection; kPeerLost if there is none. It may not arrive:
  // if the connection dies, the message is lost, and kDisconnected follows. Thread-safe.
  virtual Result<void> send(const protocol::Envelope& envelope) = 0;
};

}  // namespace millrace::worker
