// Rank 0's view of the coordinator: messages in, messages out. ControlClient is the one over TCP;
// tests script one in memory.
#pragma once

#include <optional>

#include "common/clock.h"
#include "common/result.h"
#include "protocol/control_messages.pb.h"

namespace millrace::worker {

struct ControlEvent {
  enum class Kind { kMessage, kConnected, kDisconnected };
  Kind kind = Kind::kMessage;
  protocol::Envelope message;  // kMessage only
};

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  // The next event if there is one by the deadline. Events come in order and are never dropped.
  virtual std::optional<ControlEvent> wait(Deadline deadline) = 0;
  std::optional<ControlEvent> poll() { return wait(Deadline::after(Duration::zero())); }

  // Thread-safe. kUnavailable while not connected.
  virtual Result<void> send(const protocol::Envelope& envelope) = 0;
};

}  // namespace millrace::worker
