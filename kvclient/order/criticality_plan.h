// SPDX-License-Identifier: Apache-2.0
// The pages that carry the most attention come first. Each rank is asked for its scores, in one
// request for all layers that are ready. Once a layer's scores have come from all ranks, its hot
// list is known. Then
//   step 0  scores of layers that have become ready
//   step 1  the pages of hot lists, layer by layer
//   step 2  all other pages, layer by layer
// The list is made from all ranks' scores, because no rank knows those of the others.
#pragma once

#include <map>

#include "kvclient/order/pull_plan.h"

namespace millrace::kvclient {

class CriticalityPlan final : public PullPlan {
 public:
  // `manifest` outlives the plan.
  CriticalityPlan(const PullPlanOptions& options, const PullPart& part, const Manifest& manifest,
                  const std::vector<PullLane>& lanes);

  std::optional<PullTurn> next(size_t lane, int64_t ready) const override;
  PullJob take(size_t lane, int64_t ready) override;
  void add_scores(const PullJob& job, const std::vector<float>& scores) override;
  int64_t num_pages(int64_t layer) const override;
  std::optional<int64_t> num_hot_pages(int64_t layer) const override {
    return layers_[static_cast<size_t>(layer)].num_hot_pages;
  }

 private:
  using Runs = std::map<int64_t, std::vector<PageRun>>;  // by layer; the next run is last
  // A page of the pull, and its place in its lane.
  struct Place {
    size_t lane = 0;
    int64_t page = 0;
    int64_t at = 0;  // index among the pages that the rank holds
  };
  struct Lane {
    int32_t first_kv_head = 0;
    int32_t num_kv_heads = 0;
    int64_t num_held = 0;  // pages of a layer and kv head that the rank holds
    int64_t layers_asked = 0;
    int64_t layers_scored = 0;
    Runs hot, rest;
  };
  struct Layer {
    size_t lanes_scored = 0;
    std::vector<std::vector<float>> scores;  // by lane: [kv heads, pages held]; until all have come
    std::optional<int64_t> num_hot_pages;
  };
  int64_t max_layers_of_scores(const Lane& lane) const;
  bool asks_for_scores(const Lane& lane, int64_t ready) const;
  void decide(int64_t layer);
  void decide_head(int64_t layer, int32_t kv_head, const std::vector<Place>& places);
  // Appends runs of the named pages, which must ascend.
  void cut(const std::vector<int64_t>& pages, int64_t layer, int32_t kv_head,
           std::vector<PageRun>& runs) const;
  static PageRun pop(Runs& runs);

  const PullPlanOptions options_;
  const int32_t first_layer_;  // of the model
  const Manifest& manifest_;
  std::vector<Lane> lanes_;
  std::vector<Layer> layers_;
  std::map<int32_t, std::vector<Place>> places_;  // by kv head, all pages of the pull
};

}  // namespace millrace::kvclient
