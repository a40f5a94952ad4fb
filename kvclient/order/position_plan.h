// Layer by layer, each by kv head and position.
#pragma once

#include "kvclient/order/pull_plan.h"

namespace millrace::kvclient {

class PositionPlan final : public PullPlan {
 public:
  PositionPlan(int32_t first_layer, const std::vector<PullLane>& lanes, int64_t pages_per_request);

  std::optional<PullTurn> next(size_t lane, int64_t ready) const override;
  PullJob take(size_t lane, int64_t ready) override;
  void add_scores(const PullJob& job, const std::vector<float>& scores) override;
  // There is no list: all of them.
  std::optional<int64_t> num_hot_pages(int64_t) const override { return num_pages_; }

 private:
  struct Lane {
    std::vector<PageRun> runs;  // the same for each layer
    int64_t layer = 0;
    size_t run = 0;
  };

  const int32_t first_layer_;
  std::vector<Lane> lanes_;
  int64_t num_pages_ = 0;  // of a layer
};

}  // namespace millrace::kvclient
