// SPDX-License-Identifier: Apache-2.0
#include "worker/control/request_inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/log.h"

namespace millrace::worker {

namespace {

// For a request that names no deadline. Days, not hours: the coordinator has its own limits.
constexpr std::chrono::hours kNoDeadline{24 * 7};

// The tokens that are expected to be computed.
int64_t new_tokens(const RequestInbox::Pending& pending) {
  const auto num_tokens =
      static_cast<int64_t>(pending.request.prompt_token_ids().size() / sizeof(int32_t));
  const auto foreseen =
      std::min(pending.request.foreseen_tokens(), static_cast<uint64_t>(num_tokens));
  return num_tokens - static_cast<int64_t>(foreseen);
}

}  // namespace

void RequestInbox::take(ControlEvent event) {
  switch (event.kind) {
    case ControlEvent::Kind::kMessage:
      take_message(std::move(event.message), event.received_at.value_or(clock_.now()));
      break;
    case ControlEvent::Kind::kConnected:
      break;
    case ControlEvent::Kind::kRefused:
      refusal_ = std::move(event.why);
      [[fallthrough]];
    case ControlEvent::Kind::kDisconnected:
      // No coordinator is left to receive answers. Finished caches stay until their leases end;
      // those that were released go.
      pending_.clear();
      std::erase_if(lease_changes_, [](const auto& one) { return one.change.has_renew(); });
      for (auto* requests : {&running_, &set_aside_}) {
        for (Running& running : *requests) running.cancelled = running.ids;
      }
      break;
  }
}

void RequestInbox::take_message(protocol::Envelope message, TimePoint received_at) {
  switch (message.body_case()) {
    case protocol::Envelope::kPrefillRequest:
      queue(std::move(*message.mutable_prefill_request()), 0);
      break;
    case protocol::Envelope::kPrefillsSideBySide: {
      auto& requests = *message.mutable_prefills_side_by_side()->mutable_requests();
      const uint64_t together = requests.size() <= num_lanes_ ? ++num_together_ : 0;
      for (auto& request : requests) queue(std::move(request), together);
      break;
    }
    case protocol::Envelope::kCancel:
      cancel(message.cancel().request_id());
      break;
    case protocol::Envelope::kSuspend:
      suspend(message.suspend().request_id(), true);
      break;
    case protocol::Envelope::kResume:
      suspend(message.resume().request_id(), false);
      break;
    case protocol::Envelope::kLeaseRenew:
      *add_lease_change(received_at).mutable_renew() = message.lease_renew();
      break;
    case protocol::Envelope::kLeaseRelease:
      *add_lease_change(received_at).mutable_release() = message.lease_release();
      break;
    case protocol::Envelope::kDrain:
      draining_ = true;
      break;
    default:
      log::warn("the coordinator sent message {}, which groups do not receive",
                static_cast<int>(message.body_case()));
  }
}

protocol::LeaseChange& RequestInbox::add_lease_change(TimePoint received_at) {
  lease_changes_.push_back({.change = {}, .received_at = received_at});
  return lease_changes_.back().change;
}

void RequestInbox::queue(protocol::PrefillRequest request, uint64_t together) {
  const uint64_t deadline_ms = request.options().deadline_ms();
  const Duration left =
      deadline_ms > 0 ? Duration(std::chrono::milliseconds(deadline_ms)) : Duration(kNoDeadline);
  pending_.push_back({std::move(request), clock_.now() + left, together});
}

void RequestInbox::cancel(const std::string& request_id) {
  for (auto* requests : {&running_, &set_aside_}) {
    for (Running& running : *requests) {
      if (std::ranges::find(running.ids, request_id) == running.ids.end()) continue;
      running.cancelled.push_back(request_id);
      return;
    }
  }
  const auto found = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    return pending.request.request_id() == request_id;
  });
  if (found == pending_.end()) return;  // finished meanwhile
  pending_.erase(found);
  cancelled_.push_back(request_id);
}

// A request that is not found has ended meanwhile.
void RequestInbox::suspend(const std::string& request_id, bool suspended) {
  for (Running& running : running_) {
    if (running.alone == request_id) running.suspended = suspended;
  }
  const auto found = std::ranges::find(set_aside_, request_id, &Running::alone);
  if (found == set_aside_.end()) return;
  found->suspended = suspended;
  std::rotate(found, found + 1, set_aside_.end());  // behind those that were resumed before
}

void RequestInbox::set_running_aside() {
  set_aside_.push_back(std::move(running_.back()));
  running_.pop_back();
}

bool RequestInbox::suspended_have_news() const {
  return std::ranges::any_of(
      set_aside_, [](const Running& one) { return !one.suspended || one.alone_cancelled(); });
}

std::optional<std::string> RequestInbox::resume_next() {
  const auto next = std::ranges::find(set_aside_, false, &Running::suspended);
  if (next == set_aside_.end()) return std::nullopt;
  running_.push_back(std::move(*next));
  set_aside_.erase(next);
  return running_.back().alone;
}

bool RequestInbox::suspended_cancelled(const std::string& request_id) const {
  const auto found = std::ranges::find(set_aside_, request_id, &Running::alone);
  return found != set_aside_.end() && found->alone_cancelled();
}

void RequestInbox::finish_suspended(const std::string& request_id) {
  std::erase_if(set_aside_, [&](const Running& one) { return one.alone == request_id; });
}

std::vector<RequestInbox::Pending> RequestInbox::start_next(int64_t max_new_tokens) {
  std::vector<Pending> next;
  if (pending_.empty()) return next;
  const uint64_t together = pending_.front().together;
  const auto end = std::ranges::find_if(pending_, [&](const Pending& pending) {
    return together == 0 ? &pending != &pending_.front() : pending.together != together;
  });
  const bool fit = std::all_of(pending_.begin(), end, [max_new_tokens](const Pending& pending) {
    return new_tokens(pending) <= max_new_tokens;
  });
  if (!fit) return next;
  next.assign(std::make_move_iterator(pending_.begin()), std::make_move_iterator(end));
  pending_.erase(pending_.begin(), end);
  Running& running = running_.emplace_back();
  for (const Pending& started : next) running.ids.push_back(started.request.request_id());
  if (next.size() == 1) running.alone = running.ids.front();
  return next;
}

bool RequestInbox::Running::alone_cancelled() const {
  return !alone.empty() && std::ranges::find(cancelled, alone) != cancelled.end();
}

bool RequestInbox::running_cancelled() const {
  return !running_.empty() && running_.back().alone_cancelled();
}

std::vector<std::string> RequestInbox::take_cancelled() {
  return std::exchange(cancelled_, {});
}

std::vector<std::string> RequestInbox::take_expired() {
  std::vector<std::string> expired;
  const TimePoint now = clock_.now();
  std::erase_if(pending_, [&](const Pending& pending) {
    if (now < pending.deadline) return false;
    expired.push_back(pending.request.request_id());
    return true;
  });
  return expired;
}

std::vector<protocol::LeaseChange> RequestInbox::take_lease_changes() {
  std::vector<protocol::LeaseChange> changes;
  for (auto& [change, received_at] : std::exchange(lease_changes_, {})) {
    const auto waited = std::chrono::ceil<std::chrono::milliseconds>(clock_.now() - received_at);
    change.set_waited_ms(static_cast<uint64_t>(std::max<int64_t>(0, waited.count())));
    changes.push_back(std::move(change));
  }
  return changes;
}

}  // namespace millrace::worker
