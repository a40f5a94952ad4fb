// SPDX-License-Identifier: Apache-2.0
// Collects what a prompt in a lane tells the coordinator, on the lane's first rank: messages go
// into the lane's report until rank 0, which has the connection, can send them. The engine's
// thread.
#pragma once

#include <optional>

#include "protocol/group_messages.pb.h"
#include "worker/control/control_link.h"

namespace millrace::worker {

class LaneMessages final : public ControlLink {
 public:
  // `report` outlives it.
  explicit LaneMessages(protocol::LaneReport& report) : report_(report) {}

  std::optional<ControlEvent> wait(Deadline) override { return std::nullopt; }
  Result<void> send(const protocol::Envelope& envelope) override {
    *report_.add_messages() = envelope;
    return {};
  }

 private:
  protocol::LaneReport& report_;
};

}  // namespace millrace::worker
