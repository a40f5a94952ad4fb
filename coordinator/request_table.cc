#include "coordinator/request_table.h"

#include <algorithm>

namespace millrace::coordinator {

bool RequestTable::insert(const std::shared_ptr<Request>& request) {
  const auto [at, inserted] = by_id_.try_emplace(request->id, request);
  if (inserted) return true;
  if (at->second->in_use()) return false;
  at->second = request;
  return true;
}

std::shared_ptr<Request> RequestTable::find(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

void RequestTable::forget(TimePoint now) {
  std::vector<std::shared_ptr<Request>> ended;
  for (auto at = by_id_.begin(); at != by_id_.end();) {
    const Request& request = *at->second;
    if (!request.in_use() && now - request.kept_since > keep_ended_) {
      at = by_id_.erase(at);
      continue;
    }
    if (!request.in_use()) ended.push_back(at->second);
    ++at;
  }
  const int64_t surplus = static_cast<int64_t>(ended.size()) - max_ended_;
  if (surplus <= 0) return;
  std::nth_element(ended.begin(), ended.begin() + surplus, ended.end(),
                   [](const auto& a, const auto& b) { return a->kept_since < b->kept_since; });
  for (int64_t i = 0; i < surplus; ++i) by_id_.erase(ended[static_cast<size_t>(i)]->id);
}

std::vector<std::shared_ptr<Request>> RequestTable::all() const {
  std::vector<std::shared_ptr<Request>> out;
  for (const auto& [id, request] : by_id_) out.push_back(request);
  return out;
}

}  // namespace millrace::coordinator
