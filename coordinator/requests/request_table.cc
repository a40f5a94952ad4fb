// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_table.h"

#include <algorithm>

namespace millrace::coordinator {

bool RequestTable::insert(const std::shared_ptr<Request>& request) {
  const auto found = by_id_.find(request->id);
  if (found != by_id_.end()) {
    if (found->second.request->in_use()) return false;
    erase(request->id);
  }
  const Due due = due_of(*request);
  const auto at = schedule_of(due).emplace(time_of(*request), request);
  by_id_.emplace(request->id, Entry{request, due, at});
  if (!request->sent_as.empty()) by_sent_id_.emplace(request->sent_as, request);
  return true;
}

std::shared_ptr<Request> RequestTable::find(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.request;
}

std::vector<std::shared_ptr<Request>> RequestTable::all() const {
  std::vector<std::shared_ptr<Request>> out;
  for (const auto& [id, entry] : by_id_) out.push_back(entry.request);
  return out;
}

std::vector<std::shared_ptr<Request>> RequestTable::known_to_groups_as(
    const std::string& id) const {
  std::vector<std::shared_ptr<Request>> out;
  if (auto own = find(id); own && own->sent_as.empty()) out.push_back(std::move(own));
  const auto [begin, end] = by_sent_id_.equal_range(id);
  for (auto at = begin; at != end; ++at) out.push_back(at->second);
  return out;
}

void RequestTable::erase(const std::string& id) {
  const auto found = by_id_.find(id);
  const Entry& entry = found->second;
  const auto [begin, end] = by_sent_id_.equal_range(entry.request->sent_as);
  const auto sent =
      std::find_if(begin, end, [&](const auto& one) { return one.second == entry.request; });
  if (sent != end) by_sent_id_.erase(sent);
  schedule_of(entry.due).erase(entry.at);
  by_id_.erase(found);
}

RequestTable::Due RequestTable::due_of(const Request& request) {
  if (!request.ended()) return Due::kDeadline;
  return request.in_use() ? Due::kLeaseEnd : Due::kForgetting;
}

TimePoint RequestTable::time_of(const Request& request) const {
  switch (due_of(request)) {
    case Due::kDeadline:
      // A client leaves at its deadline, whatever becomes of the prefill.
      return request.role == RequestRole::kPrefill ? request.must_end_by()
                                                   : request.queued_at + request.deadline_after();
    case Due::kLeaseEnd:
      // A renewal that came in time counts, however late the group handles it.
      return request.lease_call_open ? TimePoint::max() : request.lease_ends;
    case Due::kForgetting:
      break;
  }
  return request.kept_since + keep_ended_;
}

void RequestTable::reschedule(const Request& request) {
  const auto found = by_id_.find(request.id);
  if (found == by_id_.end() || found->second.request.get() != &request) return;
  Entry& entry = found->second;
  const Due due = due_of(request);
  const TimePoint time = time_of(request);
  if (due == entry.due && time == entry.at->first) return;
  auto node = schedule_of(entry.due).extract(entry.at);
  node.key() = time;
  entry.due = due;
  entry.at = schedule_of(due).insert(std::move(node));
}

std::shared_ptr<Request> RequestTable::first_due(Due what, TimePoint now) const {
  const Schedule& schedule = schedule_of(what);
  return schedule.empty() || schedule.begin()->first > now ? nullptr : schedule.begin()->second;
}

void RequestTable::forget(TimePoint now) {
  Schedule& ended = schedule_of(Due::kForgetting);
  while (!ended.empty() && (std::ssize(ended) > max_ended_ || ended.begin()->first < now)) {
    erase(ended.begin()->second->id);
  }
}

}  // namespace millrace::coordinator
