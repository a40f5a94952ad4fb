// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_tracker.h"

#include "coordinator/requests/request_log.h"

namespace millrace::coordinator {

namespace {

// Null if the result has none.
std::shared_ptr<const std::vector<float>> take_head_density(protocol::PrefillDone& result) {
  if (result.head_recalls().density().empty()) return nullptr;
  google::protobuf::RepeatedField<float> taken;
  taken.Swap(result.mutable_head_recalls()->mutable_density());
  return std::make_shared<const std::vector<float>>(taken.begin(), taken.end());
}

}  // namespace

RequestTracker::RequestTracker(RequestQueue queue, RequestTable table, const Clock& clock,
                               CoordinatorMetrics& metrics, OnChange on_change)
    : clock_(clock),
      metrics_(metrics),
      on_change_(std::move(on_change)),
      queue_(std::move(queue)),
      table_(std::move(table)) {}

Result<void> RequestTracker::admit(const std::shared_ptr<Request>& request) {
  MR_RETURN_IF_ERROR(queue_.push(request));
  const bool inserted = table_.insert(request);
  MR_CHECK(inserted, "request id {} in use", request->id);
  ++open_by_owner_[request->owner];
  metrics_.admitted(*request);
  count_waiting();
  return {};
}

void RequestTracker::join(const std::shared_ptr<Request>& request) {
  const bool inserted = table_.insert(request);
  MR_CHECK(inserted, "request id {} in use", request->id);
  ++open_by_owner_[request->owner];
  metrics_.joined();
}

void RequestTracker::hand_over(const std::shared_ptr<Request>& request,
                               const std::shared_ptr<Request>& heir) {
  queue_.replace(*request, heir);
  const bool inserted = table_.insert(heir);
  MR_CHECK(inserted, "request id {} in use", heir->id);
  request->role = RequestRole::kJoined;
  request->prompt.clear();
}

void RequestTracker::assign(const std::shared_ptr<Request>& request) {
  const bool waited = queue_.remove(*request);
  MR_CHECK(waited, "request {} is not in the queue", request->id);
  ++running_;
  count_waiting();
}

void RequestTracker::begin(Request& request) {
  if (request.state != RequestState::kQueued) return;
  request.state = RequestState::kRunning;
  request.started_at = clock_.now();
  changed(request);
}

void RequestTracker::requeue(const std::shared_ptr<Request>& request, Errc why) {
  metrics_.given_back(why);
  metrics_.wasted(*request, why, request->layer_density.size());
  --running_;
  request->state = RequestState::kQueued;
  request->started_at.reset();
  request->layer_density.clear();
  request->group_id.clear();
  request->group_name.clear();
  queue_.push_front(request);
  count_waiting();
  changed(*request);
}

void RequestTracker::finish(Request& request, protocol::PrefillDone result, Duration lease) {
  --running_;
  request.prompt.clear();
  request.state = RequestState::kDone;
  request.ended_at = request.kept_since = clock_.now();
  request.head_density = take_head_density(result);
  request.result = std::make_shared<const protocol::PrefillDone>(std::move(result));
  request.lease = LeaseState::kActive;
  request.lease_ends = clock_.now() + lease;
  ended(request);
}

void RequestTracker::finish_joined(Request& request,
                                   std::shared_ptr<const protocol::PrefillDone> result,
                                   Duration lease) {
  request.state = RequestState::kDone;
  request.ended_at = request.kept_since = clock_.now();
  request.result = std::move(result);
  request.lease = LeaseState::kActive;
  request.lease_ends = clock_.now() + lease;
  ended(request);
}

void RequestTracker::fail(const std::shared_ptr<Request>& request, Refusal why) {
  if (request->ended()) return;
  if (request->role != RequestRole::kJoined && !queue_.remove(*request)) --running_;
  request->prompt.clear();
  request->state = RequestState::kFailed;
  request->failure = std::move(why);
  request->ended_at = request->kept_since = clock_.now();
  ended(*request);
}

void RequestTracker::wasted_layer(const Request& request) {
  metrics_.wasted(request, request.failure ? request.failure->error.code : Errc::kCancelled, 1);
}

void RequestTracker::changed(const Request& request) {
  table_.reschedule(request);
  on_change_(request);
}

int RequestTracker::open_of(const std::string& owner) const {
  const auto found = open_by_owner_.find(owner);
  return found == open_by_owner_.end() ? 0 : found->second;
}

std::vector<std::shared_ptr<const Request>> RequestTracker::latest_ended() const {
  std::vector<std::shared_ptr<const Request>> out;
  for (const std::string& id : latest_ended_) {
    auto request = table_.find(id);
    // The id may have been used again.
    if (request != nullptr && request->ended()) out.push_back(std::move(request));
  }
  return out;
}

void RequestTracker::ended(const Request& request) {
  if (request.role != RequestRole::kPrefill) {
    const auto own = open_by_owner_.find(request.owner);
    if (--own->second == 0) open_by_owner_.erase(own);
  }
  metrics_.ended(request);
  log_ended(request);
  std::erase(latest_ended_, request.id);
  latest_ended_.push_front(request.id);
  if (latest_ended_.size() > kMostLatestEnded) {
    if (const auto oldest = table_.find(latest_ended_.back())) oldest->head_density.reset();
    latest_ended_.pop_back();
  }
  count_waiting();
  changed(request);
}

void RequestTracker::count_waiting() {
  metrics_.waiting(queue_.size(), running_);
}

}  // namespace millrace::coordinator
