// SPDX-License-Identifier: Apache-2.0
#include "kvclient/order/position_plan.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kvclient {

PositionPlan::PositionPlan(const PullPart& part, const Manifest& manifest,
                           const std::vector<PullLane>& lanes, int64_t pages_per_request)
    : first_layer_(part.first_layer),
      manifest_(manifest),
      pages_per_request_(pages_per_request),
      lanes_(lanes.size()),
      num_pages_(static_cast<size_t>(part.num_layers)) {
  for (size_t l = 0; l < lanes.size(); ++l) {
    lanes_[l].spans = lanes[l].spans;
    for (int64_t layer = 0; layer < part.num_layers; ++layer) {
      if (layer > 0 && !manifest.kept_pages) {
        num_pages_[static_cast<size_t>(layer)] = num_pages_.front();
        continue;
      }
      for (const PageRun& run : runs_of(lanes_[l].spans, layer)) {
        num_pages_[static_cast<size_t>(layer)] += run.num_pages;
      }
    }
    enter(lanes_[l], 0);
  }
}

std::vector<PageRun> PositionPlan::runs_of(const std::vector<PageSpan>& spans,
                                           int64_t layer) const {
  const int32_t of_model = first_layer_ + static_cast<int32_t>(layer);
  std::vector<PageRun> runs;
  for (const PageSpan& span : spans) {
    bool is_begun = false;  // a run that the next page may join
    for (int64_t page = span.first_page; page < span.first_page + span.num_pages; ++page) {
      if (!manifest_.has_page(of_model, span.kv_head, page)) continue;
      if (!is_begun || runs.back().num_pages == pages_per_request_) {
        runs.push_back({.kv_head = span.kv_head, .first_page = page, .named = {}});
        is_begun = true;
      }
      ++runs.back().num_pages;
      if (manifest_.kept_pages) runs.back().named.push_back(page);
    }
  }
  return runs;
}

void PositionPlan::enter(Lane& lane, int64_t layer) {
  lane.layer = layer;
  lane.run = 0;
  if (!manifest_.kept_pages && !lane.runs.empty()) return;
  const auto num_layers = std::ssize(num_pages_);
  lane.runs.clear();
  while (lane.layer < num_layers && (lane.runs = runs_of(lane.spans, lane.layer)).empty()) {
    ++lane.layer;
  }
}

std::optional<PullTurn> PositionPlan::next(size_t lane, int64_t ready) const {
  const int64_t layer = lanes_[lane].layer;
  if (layer >= ready) return std::nullopt;
  return PullTurn{.layer = layer};
}

PullJob PositionPlan::take(size_t lane, int64_t) {
  Lane& from = lanes_[lane];
  PullJob job{
      .run = from.runs[from.run], .scores = {}, .hot = true, .lane = static_cast<int>(lane)};
  job.run.layer = first_layer_ + static_cast<int32_t>(from.layer);
  if (++from.run == from.runs.size()) enter(from, from.layer + 1);
  return job;
}

void PositionPlan::add_scores(const PullJob&, const std::vector<float>&) {
  MR_CHECK(false, "scores, which nobody asked for");
}

}  // namespace millrace::kvclient
