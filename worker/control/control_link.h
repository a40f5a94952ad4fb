// Rank 0's view of the coordinator: messages in, messages out. ControlClient is the one over TCP;
// tests script one in memory.
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
    kDisconnected,  // `why`; whatever was running has no listener any more
    kRefused,       // `why`; this group will not be let in, the client has given up
    kMessage,       // anything else than heartbeats
  };
  Kind kind = Kind::kMessage;
  std::string why;
  protocol::Envelope message;
  std::optional<TimePoint> received_at;  // none: just now
};

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  // The next event if there is one by the deadline. Events come in order and are never dropped.
  virtual std::optional<ControlEvent> wait(Deadline deadline) = 0;
  std::optional<ControlEvent> poll() { return wait(Deadline::after(Duration::zero())); }

  // Thread-safe. Queues the message for the present connection; kPeerLost without one. No promise
  // that it arrives: a connection that dies takes it along, and kDisconnected follows.
  virtual Result<void> send(const protocol::Envelope& envelope) = 0;
};

}  // namespace millrace::worker
