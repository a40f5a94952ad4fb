#include "kvclient/pull_task.h"

#include <algorithm>
#include <map>

#include "common/check.h"
#include "common/units.h"
#include "kvclient/manifest/shard_spans.h"

namespace millrace::kvclient {

PullTask::PullTask(std::shared_ptr<const Manifest> from, PullRequest what,
                   int64_t pages_per_request)
    : manifest(std::move(from)),
      request(std::move(what)),
      deadline(Deadline::after(request.timeout)),
      pages_left_(request.layers.size()) {
  const int64_t page_tokens = manifest->layout.page_tokens;
  const int64_t end_page = ceil_div(request.first_token + request.num_tokens, page_tokens);
  std::map<int, size_t> lane_of_shard;
  for (int32_t h = 0; h < request.num_kv_heads; ++h) {
    const int32_t head = request.first_kv_head + h;
    const ShardSpans spans(*manifest, head);
    for (int64_t page = request.first_token / page_tokens; page < end_page;) {
      const ShardSpan* span = spans.find(page);
      MR_CHECK(span != nullptr, "kv head {}, page {}: not covered", head, page);
      const auto [known, added] = lane_of_shard.emplace(span->shard, lanes_.size());
      if (added) {
        lanes_.push_back(
            {.address = manifest->shards[static_cast<size_t>(span->shard)].address, .runs = {}});
      }
      const int64_t count = std::min({pages_per_request, span->end_page - page, end_page - page});
      lanes_[known->second].runs.push_back(
          {.kv_head = head, .first_page = page, .num_pages = count});
      page += count;
      for (auto& left : pages_left_) left += count;
    }
  }
  for (const int64_t left : pages_left_) num_pages_ += left;
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
  Lane* best = nullptr;
  int best_load = max_load;
  for (auto& lane : lanes_) {
    if (lane.layer >= ready || (best != nullptr && lane.layer > best->layer)) continue;
    const int lane_load = load(lane.address);
    if (lane_load >= max_load) continue;
    if (best != nullptr && lane.layer == best->layer && lane_load >= best_load) continue;
    best = &lane;
    best_load = lane_load;
  }
  if (best == nullptr) return std::nullopt;
  PullJob job{.run = best->runs[best->run], .lane = static_cast<int>(best - lanes_.data())};
  job.run.layer = request.first_layer + static_cast<int32_t>(best->layer);
  if (++best->run == best->runs.size()) {
    best->run = 0;
    ++best->layer;
  }
  return job;
}

void PullTask::count(const PullJob& job, const PullOutcome& outcome) {
  stats.pages += job.run.num_pages;
  stats.corrupt_pages += outcome.corrupt_pages;
  for (const auto& [transport, bytes] : outcome.bytes_by_transport) {
    stats.bytes_by_transport[transport] += bytes;
    stats.bytes += bytes;
  }
  for (const Tier tier : kTiers) stats.pages_by_tier[tier] += outcome.pages_by_tier[tier];
  auto& left = pages_left_[static_cast<size_t>(job.run.layer - request.first_layer)];
  left -= job.run.num_pages;
  if (left == 0) ++layers_complete_;
}

}  // namespace millrace::kvclient
