// What a prompt in a lane tells the coordinator, kept on the lane's first rank until rank 0, which has
// the connection, can send it. The engine's thread.
#pragma once

#include <optional>
#include <vector>

#include "comm/api/communicator.h"
#include "protocol/group_messages.pb.h"
#include "worker/control/control_link.h"

namespace millrace::worker {

class LaneMessages final : public ControlLink {
 public:
  std::optional<ControlEvent> wait(Deadline) override { return std::nullopt; }
  Result<void> send(const protocol::Envelope& envelope) override;

  const protocol::LaneReport& report() const { return report_; }

 private:
  protocol::LaneReport report_;
};

// Collective: the report of every rank, by rank; empty of those with none.
Result<std::vector<protocol::LaneReport>> gather_reports(comm::Communicator& world,
                                                         const protocol::LaneReport& own,
                                                         Deadline deadline);

}  // namespace millrace::worker
