// What the passing of time does to requests, leases and groups.
#include "coordinator/schedule/scheduler.h"

namespace millrace::coordinator {

namespace {

std::string where(const Request& request) {
  if (request.state == RequestState::kQueued) return "while the request was waiting for a group";
  return fmt::format("on group '{}' after {} of {} layers", request.group_name,
                     request.layer_density.size(), request.num_layers);
}

}  // namespace

void Scheduler::tick() {
  const TimePoint now = clock_.now();
  attended_.advance(now);
  expire_deadlines(now);
  expire_leases(now);
  drop_silent_groups();
  drop_groups_that_do_not_end(now);
  fail_orphans(now);
  table_.forget(now);
  beat(now);
  dispatch();
}

void Scheduler::expire_deadlines(TimePoint now) {
  while (const auto request = table_.first_due(RequestTable::Due::kDeadline, now)) {
    Error passed = error(Errc::kDeadlineExceeded, "deadline of {:.3f} s passed {}",
                         seconds(request->deadline_after), where(*request));
    cancel_on_group(*request);
    fail(request, std::move(passed));
  }
}

void Scheduler::expire_leases(TimePoint now) {
  while (const auto request = table_.first_due(RequestTable::Due::kLeaseEnd, now)) {
    end_lease(*request, LeaseState::kExpired);
  }
  probes_.active_leases(table_.num_leased());
}

void Scheduler::beat(TimePoint now) {
  if (now - last_beat_ < settings_.heartbeat_interval) return;
  last_beat_ = now;
  protocol::Envelope envelope;
  envelope.mutable_heartbeat()->set_sequence(++beats_);
  for (Group* group : groups_.all()) group->link->send(envelope);
}

void Scheduler::drop_silent_groups() {
  for (Group* group : groups_.all()) {
    const Duration silent = attended_.passed() - group->last_heard;
    const bool hangs = silent > settings_.group_patience;
    const bool gone = silent > settings_.host_patience && !group->link->host_answers();
    if (!hangs && !gone) continue;
    const std::string why = fmt::format("nothing heard for {:.2f} s{}", seconds(silent),
                                        gone ? ", and its host does not answer" : "");
    group->link->close(why);
    lose(groups_.remove(group->description.group_id()), why);
  }
}

void Scheduler::drop_groups_that_do_not_end(TimePoint now) {
  for (Group* group : groups_.all()) {
    if (!group->cancelled_at) continue;
    const Duration patience_to_end = group->longest_step() + settings_.cancel_patience;
    if (now - *group->cancelled_at < patience_to_end) continue;
    const std::string why = fmt::format("it did not end a cancelled request in {:.0f} s",
                                        seconds(now - *group->cancelled_at));
    group->link->close(why);
    lose(groups_.remove(group->description.group_id()), why);
  }
}

void Scheduler::fail_orphans(TimePoint now) {
  for (auto at = orphaned_since_.begin(); at != orphaned_since_.end();) {
    if (now - at->second < settings_.group_return) {
      ++at;
      continue;
    }
    const auto waiting = queue_.waiting();  // a copy: fail() takes them out of the queue
    for (const auto& request : waiting) {
      if (request->model != at->first) continue;
      fail(request,
           error(Errc::kUnavailable, "no worker group for model '{}' came back in {:.0f} s",
                 at->first, seconds(settings_.group_return)));
    }
    at = orphaned_since_.erase(at);
  }
}

}  // namespace millrace::coordinator
