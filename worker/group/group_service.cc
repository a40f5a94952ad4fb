#include "worker/group/group_service.h"

#include <algorithm>
#include <utility>

#include "common/errc_wire.h"
#include "common/log.h"
#include "common/random_id.h"
#include "worker/ranks/agreement.h"
#include "worker/ranks/command_channel.h"

namespace millrace::worker {

Result<void> GroupService::run(const std::atomic<bool>& stop) {
  auto& world = runtime_.grid().world();
  stop_ = &stop;
  MR_RETURN_IF_ERROR(agree(world, make_writer(), Deadline::after(command_timeout())));
  while (true) {
    protocol::GroupCommand command;
    expect("waiting for a command", command_timeout() + kCommandInterval);
    if (link_ != nullptr) command = next_command();
    auto shared = share_command(world, command, Deadline::after(command_timeout()));
    if (!shared.ok()) return broken(shared.error());
    MR_RETURN_IF_ERROR(obey(*shared));
    if (!shared->stop()) continue;
    if (inbox_.refusal().empty()) return {};
    return error(Errc::kUnsupported, "the coordinator refused this group: {}", inbox_.refusal());
  }
}

Result<void> GroupService::make_writer() {
  MR_ASSIGN_OR_RETURN(writer_,
                      PageWriter::create(runtime_.device(), store_, store_.geometry(),
                                         std::min(runtime_.cores().num_threads, kMaxPageWriters)));
  return {};
}

protocol::GroupCommand GroupService::next_command() {
  if (inbox_.empty()) read_link(kCommandInterval);
  look_for_drain();
  for (const auto& id : inbox_.take_cancelled()) {
    send_failed(id, error(Errc::kCancelled, "request {} was cancelled before it started", id));
  }
  for (const auto& id : inbox_.take_expired()) {
    send_failed(id, error(Errc::kDeadlineExceeded,
                          "request {}: the deadline passed before it started", id));
  }
  protocol::GroupCommand command;
  for (auto& change : inbox_.take_lease_changes()) {
    *command.add_lease_changes() = std::move(change);
  }
  if (auto next = inbox_.start_next()) {
    running_deadline_ = next->deadline;
    auto& request = next->request;
    auto& run = *command.mutable_run();
    run.set_request_id(request.request_id());
    run.set_prompt_token_ids(std::move(*request.mutable_prompt_token_ids()));
    *run.mutable_options() = std::move(*request.mutable_options());
    run.set_lease_id(random_id());
  } else if (inbox_.draining()) {
    command.set_stop(may_stop());
  }
  return command;
}

// The coordinator hears of it at once, also in the middle of a prompt: it has more of them, and a
// group that is given one after the other would never end.
void GroupService::look_for_drain() {
  if (stop_->load() || !inbox_.refusal().empty()) inbox_.drain();
  if (!inbox_.draining() || drain_announced_) return;
  drain_announced_ = true;
  protocol::Envelope envelope;
  envelope.mutable_drain();
  send(envelope);
  spdlog::info("draining: {} leases", store_.stats().leases_active);
}

// Nothing runs and nothing waits; leases do.
bool GroupService::may_stop() {
  const TimePoint now = clock_.now();
  if (!drain_deadline_) drain_deadline_ = now + options_.drain_timeout;
  return store_.stats().leases_active == 0 || now >= *drain_deadline_;
}

void GroupService::read_link(Duration longest_wait) {
  auto event = link_->wait(Deadline::after(longest_wait));
  while (event.has_value()) {
    inbox_.take(std::move(*event));
    event = link_->poll();
  }
}

Result<void> GroupService::obey(const protocol::GroupCommand& command) {
  store_.expire_leases();
  for (const auto& change : command.lease_changes()) MR_RETURN_IF_ERROR(change_lease(change));
  if (command.has_run()) MR_RETURN_IF_ERROR(run_prompt(command.run()));
  expect("gathering metrics", command_timeout());
  const auto posted = post_metrics();
  return posted.ok() ? posted : broken(posted.error());
}

// What fails for the sake of one request fails on all ranks at the same point, and they meet
// afterwards. Ranks that cannot meet are no group any more, whatever went wrong first.
Result<void> GroupService::meet_after(const Error& failure) {
  if (failure.code == Errc::kPeerLost) return broken(failure);
  const auto met = runtime_.grid().world().barrier(Deadline::after(command_timeout()));
  return met.ok() ? Result<void>() : broken(failure);
}

Error GroupService::broken(const Error& failure) const {
  const std::string silent = watch_ == nullptr ? "" : watch_->silent_ranks();
  if (silent.empty()) return error(Errc::kPeerLost, "{}", failure.message);
  return error(Errc::kPeerLost, "{}; {}", silent, failure.message);
}

// A rank that is busy looks up at every command and every layer; it need not look up less often
// between requests than within them. Rank 0, idle, lets the others wait for kCommandInterval.
Duration GroupService::command_timeout() const {
  return std::max<Duration>(4 * kCommandInterval,
                            std::min<Duration>(kCommandTimeout, options_.layer_timeout));
}

// A single rank on a CPU waits for nobody and may take its time.
void GroupService::expect(const std::string& step, Duration allowed) {
  const bool waits = runtime_.grid().world().size() > 1 || !runtime_.device().info().host_memory;
  if (watch_ != nullptr && waits) watch_->expect_step(step, allowed);
}

Duration GroupService::lease_of(uint64_t lease_ms) const {
  if (lease_ms == 0) return options_.default_lease;
  const auto longest_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.max_lease).count();
  return std::chrono::milliseconds(std::min(lease_ms, static_cast<uint64_t>(longest_ms)));
}

Result<void> GroupService::change_lease(const protocol::LeaseChange& change) {
  auto& world = runtime_.grid().world();
  expect("a lease change", command_timeout());
  Result<void> own;
  protocol::Envelope envelope;
  auto& reply = *envelope.mutable_lease_reply();
  const bool stores = runtime_.weights().shard.kv_replica == 0;
  if (change.has_renew()) {
    const auto& renew = change.renew();
    const Duration lease = lease_of(renew.lease_ms());
    if (stores) own = store_.renew_lease(renew.request_id(), renew.lease_id(), lease);
    reply.set_request_id(renew.request_id());
    reply.set_expires_in_ms(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(lease).count()));
  } else {
    const auto& release = change.release();
    if (stores) own = store_.release_lease(release.request_id(), release.lease_id());
    reply.set_request_id(release.request_id());
  }
  const auto agreed = agree(world, own, Deadline::after(command_timeout()));
  note_lease_change(change, agreed);
  if (!agreed.ok()) {
    // Leases end a moment apart on the ranks. A renewal in that moment is granted by some, whose
    // pages would stay for a lease that nobody has. One that is over again is the sweep's.
    if (change.has_renew() && own.ok() && stores) {
      (void)store_.release_lease(change.renew().request_id(), change.renew().lease_id());
    }
    MR_RETURN_IF_ERROR(meet_after(agreed.error()));
    reply.mutable_error()->set_code(errc_to_wire(agreed.error().code));
    reply.mutable_error()->set_message(agreed.error().message);
    reply.set_expires_in_ms(0);
  }
  send(envelope);
  return {};
}

// For the coordinator's next start.
void GroupService::note_lease_change(const protocol::LeaseChange& change,
                                     const Result<void>& outcome) {
  if (link_ == nullptr) return;
  if (change.has_release() || !outcome.ok()) {
    const auto& id =
        change.has_release() ? change.release().request_id() : change.renew().request_id();
    const auto& lease_id =
        change.has_release() ? change.release().lease_id() : change.renew().lease_id();
    board_.end(id, lease_id);
  } else {
    const auto& renew = change.renew();
    board_.renew(renew.request_id(), renew.lease_id(), lease_of(renew.lease_ms()));
  }
}

Result<void> GroupService::post_metrics() {
  auto& grid = runtime_.grid();
  const auto store = store_.stats();
  const RankStats own{.store = store,
                      .free_prompt_tokens = runtime_.storable_tokens(store.pages_available),
                      .transport = server_.stats(),
                      .tp = comm::sum_of(runtime_.engine().groups().tp->stats()),
                      .cp = comm::sum_of(runtime_.engine().groups().cp->stats()),
                      .attention_imbalance = attention_imbalance_};
  MR_ASSIGN_OR_RETURN(const auto ranks,
                      gather_stats(grid.world(), own, Deadline::after(command_timeout())));
  if (link_ != nullptr) board_.post(group_metrics(ranks), free_prompt_tokens(ranks));
  return {};
}

void GroupService::send(const protocol::Envelope& envelope) {
  if (link_ == nullptr) return;
  const auto sent = link_->send(envelope);
  // The coordinator that is gone has answered its client already; a new one asks anew.
  if (!sent.ok()) spdlog::warn("to the coordinator: {}", sent.error().to_string());
}

void GroupService::send_failed(const std::string& request_id, const Error& failure) {
  protocol::Envelope envelope;
  auto& failed = *envelope.mutable_prefill_failed();
  failed.set_request_id(request_id);
  failed.mutable_error()->set_code(errc_to_wire(failure.code));
  failed.mutable_error()->set_message(failure.message);
  send(envelope);
}

}  // namespace millrace::worker
