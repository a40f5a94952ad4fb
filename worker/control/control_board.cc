// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_board.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace millrace::worker {

namespace {

// The most origins of pages that a new coordinator is told: the latest prompts' plans and lengths.
constexpr size_t kMaxPlanOrigins = 64;

}  // namespace

void ControlBoard::post(std::vector<protocol::Metric> metrics, int64_t free_prompt_tokens) {
  const std::lock_guard lock(mutex_);
  metrics_ = std::move(metrics);
  free_prompt_tokens_ = free_prompt_tokens;
  forget_ended();
}

protocol::Heartbeat ControlBoard::heartbeat() const {
  const std::lock_guard lock(mutex_);
  protocol::Heartbeat out;
  for (const auto& metric : metrics_) *out.add_metrics() = metric;
  if (free_prompt_tokens_) {
    out.mutable_room()->set_free_prompt_tokens(static_cast<uint64_t>(*free_prompt_tokens_));
  }
  out.set_cached_prefixes(cache_sequence_);
  return out;
}

bool ControlBoard::cache_changed(protocol::CachedPrefixes& change) {
  const std::lock_guard lock(mutex_);
  auto& gone = *change.mutable_gone();
  gone.erase(std::remove_if(gone.begin(), gone.end(),
                            [this](uint64_t key) { return prefix_keys_.erase(key) == 0; }),
             gone.end());
  auto& added = *change.mutable_added();
  const auto is_known_or_too_much = [this](uint64_t key) {
    return prefix_keys_.size() == kMaxPrefixKeys || !prefix_keys_.insert(key).second;
  };
  added.erase(std::remove_if(added.begin(), added.end(), is_known_or_too_much), added.end());
  if (added.empty() && gone.empty()) return false;
  change.set_sequence(++cache_sequence_);
  for (const auto& seen : change.origins()) {
    const auto same = [&seen](const protocol::PlanOrigin& known) {
      return known.head_plan() == seen.head_plan() && known.min_recall() == seen.min_recall() &&
             known.origin() == seen.origin() && known.num_tokens() == seen.num_tokens();
    };
    std::erase_if(plan_origins_, same);
    if (plan_origins_.size() == kMaxPlanOrigins) plan_origins_.erase(plan_origins_.begin());
    plan_origins_.push_back(seen);
  }
  return true;
}

protocol::CachedPrefixes ControlBoard::cached_prefixes() const {
  const std::lock_guard lock(mutex_);
  protocol::CachedPrefixes all;
  all.set_sequence(cache_sequence_);
  all.set_whole(true);
  all.mutable_added()->Add(prefix_keys_.begin(), prefix_keys_.end());
  all.mutable_origins()->Add(plan_origins_.begin(), plan_origins_.end());
  return all;
}

void ControlBoard::hold(const protocol::PrefillDone& done) {
  const auto& manifest = done.manifest();
  const std::lock_guard lock(mutex_);
  leases_[done.request_id()] = {
      .id = manifest.lease_id(),
      .done = done.SerializeAsString(),
      .ends = clock_.now() + std::chrono::milliseconds(manifest.lease_ms())};
}

ControlBoard::Lease* ControlBoard::find(const std::string& request_id,
                                        const std::string& lease_id) {
  const auto found = leases_.find(request_id);
  return found == leases_.end() || found->second.id != lease_id ? nullptr : &found->second;
}

void ControlBoard::renew(const std::string& request_id, const std::string& lease_id,
                         Duration lease) {
  const std::lock_guard lock(mutex_);
  if (Lease* held = find(request_id, lease_id)) held->ends = clock_.now() + lease;
}

void ControlBoard::end(const std::string& request_id, const std::string& lease_id) {
  const std::lock_guard lock(mutex_);
  const Lease* held = find(request_id, lease_id);
  if (held == nullptr) return;
  if (held->ends <= clock_.now()) ++num_expired_;
  leases_.erase(request_id);
}

std::vector<protocol::LeaseHeld> ControlBoard::held() {
  const std::lock_guard lock(mutex_);
  forget_ended();
  std::vector<protocol::LeaseHeld> out;
  for (const auto& [id, lease] : leases_) {
    auto& held = out.emplace_back();
    MR_CHECK(held.mutable_done()->ParseFromString(lease.done), "lease of {}", id);
    held.set_expires_in_ms(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(lease.ends - clock_.now()).count()));
  }
  return out;
}

LeaseCounts ControlBoard::lease_counts() {
  const std::lock_guard lock(mutex_);
  forget_ended();
  return {.active = std::ssize(leases_), .expired = num_expired_};
}

void ControlBoard::forget_ended() {
  const auto num_ended = std::erase_if(
      leases_, [now = clock_.now()](const auto& entry) { return entry.second.ends <= now; });
  num_expired_ += static_cast<int64_t>(num_ended);
}

}  // namespace millrace::worker
