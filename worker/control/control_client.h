// The group's connection to the coordinator, held by rank 0. It runs on a thread of its own, so
// that heartbeats go out while the engine computes; the engine polls for events between layers.
//
// A lost connection is an event, not an end: the client keeps trying, registers again under the
// same group id, and the KV caches that the group holds stay valid meanwhile.
//
//   ControlBoard board;
//   ControlClient control(options, board);
//   MR_RETURN_IF_ERROR(control.wait_connected(Deadline::after(30s)));
//   for (;;) {
//     auto event = control.wait(Deadline::after(100ms));
//     if (event && event->kind == ControlEvent::Kind::kMessage) handle(event->message);
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/net/tls_context.h"
#include "common/result.h"
#include "protocol/control_messages.pb.h"
#include "worker/control/control_board.h"
#include "worker/control/control_link.h"

namespace millrace::worker {

struct ControlOptions {
  std::string host = "127.0.0.1";  // name or address
  uint16_t port = 8001;
  // With a certificate the connection is encrypted, and both sides show one that `ca` has signed. Read
  // anew for every connection.
  TlsFiles tls;
  protocol::Register description;
  Duration first_retry = std::chrono::milliseconds(100);  // doubles up to last_retry
  Duration last_retry = std::chrono::seconds(2);
  Duration connect_timeout = std::chrono::seconds(5);  // including the registration
  // The coordinator counts as dead after this many of its heartbeats are missing, where it does not
  // say how patient it is itself. Ending a request because a machine was busy for a second helps
  // nobody, and the death of a process shows at once, by the connection.
  int missed_heartbeats = 8;
};

class ControlClient final : public ControlLink {
 public:
  // `board`, which outlives the client, says what heartbeats carry and which leases are told to a
  // coordinator that lets the group in.
  ControlClient(ControlOptions options, ControlBoard& board);
  // Closes the connection.
  ~ControlClient() override;
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  // All of these are thread-safe.

  // Until registered. Takes no events out. The coordinator's refusal, or kDeadlineExceeded.
  Result<void> wait_connected(Deadline deadline);
  std::optional<ControlEvent> wait(Deadline deadline) override;
  Result<void> send(const protocol::Envelope& envelope) override;
  bool connected() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace millrace::worker
