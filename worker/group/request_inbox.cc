#include "worker/group/request_inbox.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace millrace::worker {

namespace {

// Where a request names none. Days, not hours: the coordinator has its own limits.
constexpr std::chrono::hours kNoDeadline{24 * 7};

}  // namespace

void RequestInbox::take(ControlEvent event) {
  switch (event.kind) {
    case ControlEvent::Kind::kMessage:
      take_message(std::move(event.message));
      break;
    case ControlEvent::Kind::kConnected:
      break;
    case ControlEvent::Kind::kRefused:
      refusal_ = std::move(event.why);
      [[fallthrough]];
    case ControlEvent::Kind::kDisconnected:
      // No one is left to hear the answers. Finished caches stay until their leases end.
      pending_.clear();
      lease_changes_.clear();
      for (Running& request : running_) request.cancelled = true;
      break;
  }
}

void RequestInbox::take_message(protocol::Envelope message) {
  switch (message.body_case()) {
    case protocol::Envelope::kPrefillRequest: {
      auto& request = *message.mutable_prefill_request();
      const uint64_t deadline_ms = request.options().deadline_ms();
      const Duration left = deadline_ms > 0 ? Duration(std::chrono::milliseconds(deadline_ms))
                                            : Duration(kNoDeadline);
      pending_.push_back({std::move(request), clock_.now() + left});
      break;
    }
    case protocol::Envelope::kCancel:
      cancel(message.cancel().request_id());
      break;
    case protocol::Envelope::kLeaseRenew:
      *lease_changes_.emplace_back().mutable_renew() = message.lease_renew();
      break;
    case protocol::Envelope::kLeaseRelease:
      *lease_changes_.emplace_back().mutable_release() = message.lease_release();
      break;
    case protocol::Envelope::kDrain:
      draining_ = true;
      break;
    default:
      spdlog::warn("the coordinator sent message {}, which groups do not receive",
                   static_cast<int>(message.body_case()));
  }
}

void RequestInbox::cancel(const std::string& request_id) {
  for (Running& request : running_) {
    if (request.id != request_id) continue;
    request.cancelled = true;
    return;
  }
  const auto found = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    return pending.request.request_id() == request_id;
  });
  if (found == pending_.end()) return;  // finished meanwhile
  pending_.erase(found);
  cancelled_.push_back(request_id);
}

std::optional<RequestInbox::Pending> RequestInbox::start_next(int64_t max_new_tokens) {
  if (pending_.empty()) return std::nullopt;
  const protocol::PrefillRequest& oldest = pending_.front().request;
  const auto num_tokens = static_cast<int64_t>(oldest.prompt_token_ids().size() / sizeof(int32_t));
  const auto foreseen =
      static_cast<int64_t>(std::min(oldest.foreseen_tokens(), static_cast<uint64_t>(num_tokens)));
  if (num_tokens - foreseen > max_new_tokens) return std::nullopt;
  Pending next = std::move(pending_.front());
  pending_.pop_front();
  running_.push_back({.id = next.request.request_id()});
  return next;
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
  return std::exchange(lease_changes_, {});
}

}  // namespace millrace::worker
