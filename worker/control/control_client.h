// SPDX-License-Identifier: Apache-2.0
// The group's connection to the coordinator, held by rank 0. It runs on its own thread, so that
// heartbeats go out while the engine computes; the engine polls for events between layers.
//
// A lost connection is an event, not the end: the client keeps trying and registers again under the
// same group id. Meanwhile the KV caches that the group holds stay valid.
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
  // With a certificate the connection is encrypted, and both sides show one that `ca` has signed.
  // The files are read again for every connection.
  TlsFiles tls;
  protocol::Register description;
  Duration first_retry = std::chrono::milliseconds(100);  // doubles up to last_retry
  Duration last_retry = std::chrono::seconds(2);
  Duration connect_timeout = std::chrono::seconds(5);  // including the registration
  // Used if the coordinator does not say how patient it is: it counts as dead after so many of its
  // heartbeats are missing. The number is large because ending a request over a machine that was
  // busy for a second helps nobody, and the connection shows the death of a process at once.
  int missed_heartbeats = 8;
};

class ControlClient final : public ControlLink {
 public:
  // `board` outlives the client. It has what heartbeats carry, and the leases that are told to a
  // coordinator once it admits the group.
  ControlClient(ControlOptions options, ControlBoard& board);
  // Closes the connection.
  ~ControlClient() override;
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  // All of these are thread-safe.

  // Waits until the group is registered; takes no events out. Fails with the coordinator's refusal,
  // or with kDeadlineExceeded.
  Result<void> wait_connected(Deadline deadline);
  std::optional<ControlEvent> wait(Deadline deadline) override;
  Result<void> send(const protocol::Envelope& envelope) override;
  bool connected() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace millrace::worker
