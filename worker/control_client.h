// The group's connection to the coordinator, held by rank 0. It runs on a thread of its own, so
// that heartbeats go out while the engine computes; the engine polls for events between layers.
//
// A lost connection is an event, not an end: the client keeps trying, registers again under the
// same group id, and the KV caches that the group holds stay valid meanwhile.
//
//   ControlClient control(options, [&] { return metrics_of_all_ranks(); });
//   MR_RETURN_IF_ERROR(control.wait_connected(Deadline::after(30s)));
//   for (;;) {
//     auto event = control.wait(Deadline::after(100ms));
//     if (event && event->kind == ControlEvent::Kind::kMessage) handle(event->message);
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "protocol/control_messages.pb.h"
#include "worker/control_link.h"

namespace millrace::worker {

struct ControlOptions {
  std::string host = "127.0.0.1";  // name or address
  uint16_t port = 8001;
  protocol::Register description;
  Duration first_retry = std::chrono::milliseconds(100);  // doubles up to last_retry
  Duration last_retry = std::chrono::seconds(2);
  Duration connect_timeout = std::chrono::seconds(5);  // including the registration
  // The coordinator counts as dead after this many of its heartbeats are missing. More than the
  // coordinator's own three: ending a request because a machine was busy for a second helps nobody,
  // and the death of its process shows at once, by the connection.
  int missed_heartbeats = 8;
};

class ControlClient final : public ControlLink {
 public:
  // `metrics` is called on the client's thread, once a heartbeat.
  using MetricsSource = std::function<std::vector<protocol::Metric>()>;

  ControlClient(ControlOptions options, MetricsSource metrics);
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
