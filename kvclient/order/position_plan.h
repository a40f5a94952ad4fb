// SPDX-License-Identifier: Apache-2.0
// Pages layer by layer, each layer by kv head and position.
#pragma once

#include "kvclient/order/pull_plan.h"

namespace millrace::kvclient {

class PositionPlan final : public PullPlan {
 public:
  // `manifest` outlives the plan.
  PositionPlan(const PullPart& part, const Manifest& manifest, const std::vector<PullLane>& lanes,
               int64_t pages_per_request);

  std::optional<PullTurn> next(size_t lane, int64_t ready) const override;
  PullJob take(size_t lane, int64_t ready) override;
  void add_scores(const PullJob& job, const std::vector<float>& scores) override;
  int64_t num_pages(int64_t layer) const override { return num_pages_[static_cast<size_t>(layer)]; }
  // There is no hot list: all pages count.
  std::optional<int64_t> num_hot_pages(int64_t layer) const override { return num_pages(layer); }

 private:
  struct Lane {
    std::vector<PageSpan> spans;
    std::vector<PageRun>
        runs;  // of the layer; without it the same for each, unless pages are missing
    int64_t layer = 0;
    size_t run = 0;
  };
  // The runs of a layer, of which the manifest may not have all pages.
  std::vector<PageRun> runs_of(const std::vector<PageSpan>& spans, int64_t layer) const;
  // Moves to the first layer, from `layer` on, of which the lane has a page.
  void enter(Lane& lane, int64_t layer);

  const int32_t first_layer_;
  const Manifest& manifest_;
  const int64_t pages_per_request_;
  std::vector<Lane> lanes_;
  std::vector<int64_t> num_pages_;  // by layer
};

}  // namespace millrace::kvclient
