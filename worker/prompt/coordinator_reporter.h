// SPDX-License-Identifier: Apache-2.0
// What a group tells its coordinator: messages as things happen, and the board that heartbeats and
// registrations are made from. Rank 0's; on the other ranks it does nothing.
#pragma once

#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "protocol/control_messages.pb.h"
#include "protocol/group_messages.pb.h"
#include "worker/control/control_board.h"
#include "worker/control/control_link.h"
#include "worker/prompt/group_metrics.h"

namespace millrace::worker {

class CoordinatorReporter {
 public:
  // Both outlive it. `link`: null except on rank 0.
  CoordinatorReporter(ControlLink* link, ControlBoard& board) : link_(link), board_(board) {}

  void draining();
  void started(const std::string& request_id);
  // For a streaming request, before its first layer: where its pages will be.
  void opened(const std::string& request_id, protocol::Manifest manifest);
  void layer_done(const protocol::LayerDone& layer);
  void done(protocol::PrefillDone done);
  void failed(const std::string& request_id, const Error& failure);
  // Passes on a message of a lane, except that its prompt has started: that is reported already.
  void relay(const protocol::Envelope& envelope);
  // `lease`: the time that a renewal is granted.
  void lease_changed(const protocol::LeaseChange& change, Duration lease,
                     const Result<void>& outcome);
  // Which beginnings of prompts are cached, and which no longer are. Only what is new is told.
  void cache_changed(protocol::CachedPrefixes change);
  void metrics(const std::vector<RankStats>& ranks);

 private:
  void send(const protocol::Envelope& envelope);

  ControlLink* link_;
  ControlBoard& board_;
};

}  // namespace millrace::worker
