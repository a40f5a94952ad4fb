// SPDX-License-Identifier: Apache-2.0
#include "kvclient/order/criticality_plan.h"

#include <algorithm>
#include <iterator>

#include "comm/api/transport.h"
#include "common/check.h"
#include "kvclient/order/hot_list.h"

namespace millrace::kvclient {

CriticalityPlan::CriticalityPlan(const PullPlanOptions& options, const PullPart& part,
                                 const Manifest& manifest, const std::vector<PullLane>& lanes)
    : options_(options),
      first_layer_(part.first_layer),
      manifest_(manifest),
      lanes_(lanes.size()),
      layers_(static_cast<size_t>(part.num_layers)) {
  for (size_t l = 0; l < lanes.size(); ++l) {
    const auto held =
        pages_of(manifest.shards[static_cast<size_t>(lanes[l].shard)], manifest.layout.page_tokens);
    const auto& spans = lanes[l].spans;
    lanes_[l].first_kv_head = spans.front().kv_head;
    lanes_[l].num_kv_heads = spans.back().kv_head - spans.front().kv_head + 1;
    lanes_[l].num_held = std::ssize(held);
    for (const PageSpan& span : spans) {
      const auto first = std::lower_bound(held.begin(), held.end(), span.first_page);
      for (int64_t i = 0; i < span.num_pages; ++i) {
        places_[span.kv_head].push_back(
            {.lane = l, .page = span.first_page + i, .at = first - held.begin() + i});
      }
    }
  }
  for (auto& [head, places] : places_) {
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return a.page < b.page; });
  }
}

int64_t CriticalityPlan::num_pages(int64_t layer) const {
  const int32_t of_model = first_layer_ + static_cast<int32_t>(layer);
  int64_t count = 0;
  for (const auto& [head, places] : places_) {
    count += std::ranges::count_if(places, [&, head = head](const Place& place) {
      return manifest_.has_page(of_model, head, place.page);
    });
  }
  return count;
}

std::optional<PullTurn> CriticalityPlan::next(size_t l, int64_t ready) const {
  const Lane& lane = lanes_[l];
  if (asks_for_scores(lane, ready)) return PullTurn{.step = 0, .layer = lane.layers_asked};
  if (!lane.hot.empty()) return PullTurn{.step = 1, .layer = lane.hot.begin()->first};
  if (!lane.rest.empty()) return PullTurn{.step = 2, .layer = lane.rest.begin()->first};
  return std::nullopt;
}

bool CriticalityPlan::asks_for_scores(const Lane& lane, int64_t ready) const {
  const bool waits = options_.scores_by_layer && lane.layers_scored < lane.layers_asked;
  return lane.layers_asked < ready && !waits;
}

// A reply holds 64 MiB.
int64_t CriticalityPlan::max_layers_of_scores(const Lane& lane) const {
  if (options_.scores_by_layer) return 1;
  const int64_t layer_bytes = lane.num_kv_heads * lane.num_held * int64_t{sizeof(float)};
  return std::max<int64_t>(1, comm::kMaxTransportPayloadBytes / layer_bytes);
}

PullJob CriticalityPlan::take(size_t l, int64_t ready) {
  Lane& lane = lanes_[l];
  PullJob job{.run = {}, .scores = {}, .lane = static_cast<int>(l)};
  if (asks_for_scores(lane, ready)) {
    const int64_t count = std::min(ready - lane.layers_asked, max_layers_of_scores(lane));
    job.scores = {.first_layer = first_layer_ + static_cast<int32_t>(lane.layers_asked),
                  .num_layers = static_cast<int32_t>(count),
                  .first_kv_head = lane.first_kv_head,
                  .num_kv_heads = lane.num_kv_heads,
                  .num_pages = lane.num_held};
    lane.layers_asked += count;
  } else {
    job.hot = !lane.hot.empty();
    job.run = pop(job.hot ? lane.hot : lane.rest);
  }
  return job;
}

PageRun CriticalityPlan::pop(Runs& runs) {
  auto& of_layer = runs.begin()->second;
  PageRun run = std::move(of_layer.back());
  of_layer.pop_back();
  if (of_layer.empty()) runs.erase(runs.begin());
  return run;
}

void CriticalityPlan::add_scores(const PullJob& job, const std::vector<float>& scores) {
  const auto lane = static_cast<size_t>(job.lane);
  const int64_t layer_scores = job.scores.num_kv_heads * job.scores.num_pages;
  MR_CHECK(std::ssize(scores) == job.scores.num_layers * layer_scores, "{} scores of {} x {}",
           scores.size(), job.scores.num_layers, layer_scores);
  lanes_[lane].layers_scored += job.scores.num_layers;
  for (int64_t i = 0; i < job.scores.num_layers; ++i) {
    const int64_t number = job.scores.first_layer - first_layer_ + i;
    Layer& layer = layers_[static_cast<size_t>(number)];
    layer.scores.resize(lanes_.size());
    const auto first = scores.begin() + i * layer_scores;
    layer.scores[lane].assign(first, first + layer_scores);
    if (++layer.lanes_scored == lanes_.size()) decide(number);
  }
}

void CriticalityPlan::decide(int64_t number) {
  Layer& layer = layers_[static_cast<size_t>(number)];
  layer.num_hot_pages = 0;
  for (const auto& [head, places] : places_) decide_head(number, head, places);
  layer.scores = {};
  for (Lane& lane : lanes_) {
    for (Runs* runs : {&lane.hot, &lane.rest}) {
      const auto of_layer = runs->find(number);
      if (of_layer == runs->end()) continue;
      std::reverse(of_layer->second.begin(), of_layer->second.end());
    }
  }
}

void CriticalityPlan::decide_head(int64_t number, int32_t kv_head,
                                  const std::vector<Place>& places) {
  Layer& layer = layers_[static_cast<size_t>(number)];
  const int32_t of_model = first_layer_ + static_cast<int32_t>(number);
  std::vector<Place> there;
  std::ranges::copy_if(places, std::back_inserter(there), [&](const Place& place) {
    return manifest_.has_page(of_model, kv_head, place.page);
  });
  std::vector<float> scores;
  for (const Place& place : there) {
    const Lane& lane = lanes_[place.lane];
    const int64_t at = (kv_head - lane.first_kv_head) * lane.num_held + place.at;
    scores.push_back(layer.scores[place.lane][static_cast<size_t>(at)]);
  }
  const auto hot = hot_list(scores, options_.hot_share);
  layer.num_hot_pages = *layer.num_hot_pages + std::count(hot.begin(), hot.end(), true);
  std::vector<std::vector<int64_t>> hot_pages(lanes_.size()), other_pages(lanes_.size());
  for (size_t i = 0; i < there.size(); ++i) {
    (hot[i] ? hot_pages : other_pages)[there[i].lane].push_back(there[i].page);
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!hot_pages[lane].empty()) {
      cut(hot_pages[lane], number, kv_head, lanes_[lane].hot[number]);
    }
    if (!other_pages[lane].empty()) {
      cut(other_pages[lane], number, kv_head, lanes_[lane].rest[number]);
    }
  }
}

void CriticalityPlan::cut(const std::vector<int64_t>& pages, int64_t layer, int32_t kv_head,
                          std::vector<PageRun>& runs) const {
  for (auto from = pages.begin(); from != pages.end();) {
    const auto to = from + std::min<ptrdiff_t>(options_.pages_per_request, pages.end() - from);
    runs.push_back({.layer = first_layer_ + static_cast<int32_t>(layer),
                    .kv_head = kv_head,
                    .num_pages = to - from,
                    .named = {from, to}});
    from = to;
  }
}

}  // namespace millrace::kvclient
