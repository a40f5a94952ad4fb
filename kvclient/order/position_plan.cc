#include "kvclient/order/position_plan.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kvclient {

PositionPlan::PositionPlan(int32_t first_layer, const std::vector<PullLane>& lanes,
                           int64_t pages_per_request)
    : first_layer_(first_layer), lanes_(lanes.size()) {
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    for (const PageSpan& span : lanes[lane].spans) {
      for (int64_t done = 0; done < span.num_pages; done += pages_per_request) {
        lanes_[lane].runs.push_back(
            {.kv_head = span.kv_head,
             .first_page = span.first_page + done,
             .num_pages = std::min(pages_per_request, span.num_pages - done)});
      }
      num_pages_ += span.num_pages;
    }
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
  if (++from.run == from.runs.size()) {
    from.run = 0;
    ++from.layer;
  }
  return job;
}

void PositionPlan::add_scores(const PullJob&, const std::vector<float>&) {
  MR_CHECK(false, "scores, which nobody asked for");
}

}  // namespace millrace::kvclient
