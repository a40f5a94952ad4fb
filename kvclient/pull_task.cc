// SPDX-License-Identifier: Apache-2.0
#include "kvclient/pull_task.h"

#include <algorithm>

#include "kvclient/order/named_plan.h"

namespace millrace::kvclient {

namespace {

PullPart part_of(const PullRequest& request) {
  return {.first_layer = request.first_layer,
          .num_layers = std::ssize(request.layers),
          .first_kv_head = request.first_kv_head,
          .num_kv_heads = request.num_kv_heads,
          .first_token = request.first_token,
          .num_tokens = request.num_tokens};
}

std::vector<PageName> names_of(const PullRequest& request) {
  std::vector<PageName> names;
  names.reserve(request.pages.size());
  for (const auto& page : request.pages) names.push_back(page.name);
  return names;
}

}  // namespace

PullTask::PullTask(std::shared_ptr<const Manifest> from, PullRequest what,
                   int64_t pages_per_request)
    : manifest(std::move(from)),
      request(std::move(what)),
      deadline(Deadline::after(request.timeout)),
      pages_left_(request.layers.size()),
      hot_pages_(request.layers.size()),
      hot_complete_(request.layers.size()) {
  if (!request.pages.empty()) {
    auto plan = std::make_unique<NamedPlan>(names_of(request), *manifest, pages_per_request);
    lanes_ = plan->lanes();
    plan_ = std::move(plan);
    num_pages_ = std::ssize(request.pages);
    return;
  }
  lanes_ = pull_lanes(part_of(request), *manifest);
  plan_ = make_pull_plan({.order = request.order,
                          .hot_share = request.hot_share,
                          .pages_per_request = pages_per_request,
                          .scores_by_layer = request.ask_again && !request.feed},
                         part_of(request), *manifest, lanes_);
  for (int64_t layer = 0; layer < std::ssize(request.layers); ++layer) {
    pages_left_[static_cast<size_t>(layer)] = plan_->num_pages(layer);
    num_pages_ += plan_->num_pages(layer);
  }
}

int64_t PullTask::num_hot_pages() const {
  int64_t sum = 0;
  for (int64_t layer = 0; layer < std::ssize(request.layers); ++layer) {
    sum += plan_->num_hot_pages(layer).value_or(0);
  }
  return sum;
}

int64_t PullTask::layers_ready() const {
  const auto all = std::ssize(request.layers);
  if (!request.feed) return all;
  return std::clamp<int64_t>(request.feed->layers_ready() - request.first_layer, 0, all);
}

std::optional<TimePoint> PullTask::next_time() const {
  std::optional<TimePoint> next;
  for (const auto& again : again_)
    next = std::min(next.value_or(again.not_before), again.not_before);
  return next;
}

std::optional<PullJob> PullTask::take_again() {
  const auto now = Clock::steady().now();
  const auto due = std::find_if(again_.begin(), again_.end(),
                                [now](const Again& again) { return again.not_before <= now; });
  if (due == again_.end()) return std::nullopt;
  const PullJob job = due->job;
  again_.erase(due);
  return job;
}

std::optional<PullJob> PullTask::next(const std::function<int(const std::string&)>& load,
                                      int max_load) {
  if (auto job = take_again()) return job;
  if (Clock::steady().now() < not_before) return std::nullopt;
  const int64_t ready = layers_ready();
  std::optional<size_t> best;
  PullTurn best_turn;
  int best_load = max_load;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto turn = plan_->next(lane, ready);
    if (!turn || (best && *turn > best_turn)) continue;
    const int lane_load = load(lanes_[lane].address);
    if (lane_load >= max_load) continue;
    if (best && *turn == best_turn && lane_load >= best_load) continue;
    best = lane;
    best_turn = *turn;
    best_load = lane_load;
  }
  if (!best) return std::nullopt;
  return plan_->take(*best, ready);
}

void PullTask::count(const PullJob& job, const PullOutcome& outcome) {
  if (job.is_for_scores()) {
    for (const auto& [transport, bytes] : outcome.bytes_by_transport) stats.score_bytes += bytes;
    plan_->add_scores(job, outcome.scores);
    const int64_t first = job.scores.first_layer - request.first_layer;
    for (int64_t i = 0; i < job.scores.num_layers; ++i) count_hot_pages(first + i, 0);
    return;
  }
  stats.pages += job.run.num_pages;
  stats.corrupt_pages += outcome.corrupt_pages;
  for (const auto& [transport, bytes] : outcome.bytes_by_transport) {
    stats.bytes_by_transport[transport] += bytes;
    stats.bytes += bytes;
  }
  for (const Tier tier : kTiers) stats.pages_by_tier[tier] += outcome.pages_by_tier[tier];
  if (!request.pages.empty()) return;
  const int64_t layer = job.run.layer - request.first_layer;
  auto& left = pages_left_[static_cast<size_t>(layer)];
  left -= job.run.num_pages;
  if (left == 0) ++layers_complete_;
  if (job.hot) count_hot_pages(layer, job.run.num_pages);
}

void PullTask::count_hot_pages(int64_t layer, int64_t num_pages) {
  const auto at = static_cast<size_t>(layer);
  stats.hot_pages += num_pages;
  hot_pages_[at] += num_pages;
  if (hot_complete_[at] || plan_->num_hot_pages(layer) != hot_pages_[at]) return;
  hot_complete_[at] = true;
  if (++hot_layers_complete_ == std::ssize(request.layers)) hot_at = Clock::steady().now();
}

}  // namespace millrace::kvclient
