// SPDX-License-Identifier: Apache-2.0
// Keeps the ranks of a group in step: they receive the same commands, agree on errors, and meet
// again after one. Every wait has a deadline, and the watch knows which step a rank is in. Used by
// the engine's thread; world and watch outlive it.
#pragma once

#include <string>

#include "comm/api/communicator.h"
#include "common/clock.h"
#include "common/result.h"
#include "protocol/group_messages.pb.h"
#include "worker/sync/rank_watch.h"

namespace millrace::worker {

struct SyncTimeouts {
  Duration command;  // between two commands
  Duration layer;    // for what the ranks do together within a prompt
};

class RankSync {
 public:
  // `watch`: null where nobody watches. `may_hang`: the device may wait for other ranks.
  RankSync(comm::Communicator& world, RankWatch* watch, bool may_hang, SyncTimeouts timeouts);

  comm::Communicator& world() const { return world_; }
  bool is_root() const { return world_.rank() == 0; }
  const SyncTimeouts& timeouts() const { return timeouts_; }

  // This rank is at `step` and calls again within `allowed`. A single rank on a CPU waits for
  // nobody and may take its time.
  void expect(const std::string& step, Duration allowed);
  // The same while other ranks do something that this one does not; but a rank that is silent for
  // `silence` is not waited for.
  void expect_others(const std::string& step, Duration allowed, Duration silence);
  // Rank 0 waits for somebody outside the group, who may take any time.
  void expect_nothing();

  // Collective: rank 0's command, on every rank. kPeerLost when the ranks do not meet.
  Result<protocol::GroupCommand> broadcast_command(const protocol::GroupCommand& command);
  // Collective, with the layer's timeout: ok on all ranks or none.
  Result<void> all_agree(const Result<void>& own);
  // Collective. What fails because of one request fails on all ranks at the same point, and they
  // meet here afterwards. Ranks that cannot meet are no longer a group, whatever failed first:
  // kPeerLost, with the reason.
  Result<void> meet_after(const Error& failure, Duration allowed);
  // `failure` as the reason for the group's end, with the ranks that are silent.
  Error broken(const Error& failure) const;

 private:
  comm::Communicator& world_;
  RankWatch* watch_;
  const bool waits_;  // for other ranks
  const SyncTimeouts timeouts_;
};

}  // namespace millrace::worker
