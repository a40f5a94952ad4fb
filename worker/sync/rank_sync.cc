// SPDX-License-Identifier: Apache-2.0
#include "worker/sync/rank_sync.h"

#include "engine/ranks/agreement.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {

RankSync::RankSync(comm::Communicator& world, RankWatch* watch, bool may_hang,
                   SyncTimeouts timeouts)
    : world_(world), watch_(watch), waits_(world.size() > 1 || may_hang), timeouts_(timeouts) {}

void RankSync::expect(const std::string& step, Duration allowed) {
  if (watch_ != nullptr && waits_) watch_->expect_step(step, allowed);
}

void RankSync::expect_others(const std::string& step, Duration allowed, Duration silence) {
  if (watch_ != nullptr && waits_) watch_->expect_step(step, allowed, silence);
}

void RankSync::expect_nothing() {
  if (watch_ != nullptr) watch_->expect_nothing();
}

Result<protocol::GroupCommand> RankSync::broadcast_command(const protocol::GroupCommand& command) {
  auto shared = worker::broadcast_command(world_, command, Deadline::after(timeouts_.command));
  if (!shared.ok()) return broken(shared.error());
  return shared;
}

Result<void> RankSync::all_agree(const Result<void>& own) {
  return engine::all_agree(world_, own, Deadline::after(timeouts_.layer));
}

Result<void> RankSync::meet_after(const Error& failure, Duration allowed) {
  if (failure.code == Errc::kPeerLost) return broken(failure);
  const auto met = world_.barrier(Deadline::after(allowed));
  return met.ok() ? Result<void>() : broken(failure);
}

Error RankSync::broken(const Error& failure) const {
  const std::string silent = watch_ == nullptr ? "" : watch_->silent_ranks();
  if (silent.empty()) return error(Errc::kPeerLost, "{}", failure.message);
  return error(Errc::kPeerLost, "{}; {}", silent, failure.message);
}

}  // namespace millrace::worker
