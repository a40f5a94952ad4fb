// SPDX-License-Identifier: Apache-2.0
// Pages by name, in the order of their names.
#pragma once

#include <span>
#include <vector>

#include "kvclient/order/pull_plan.h"

namespace millrace::kvclient {

class NamedPlan final : public PullPlan {
 public:
  // `names` must ascend and lie in the manifest, which has passed check_manifest.
  NamedPlan(std::span<const PageName> names, const Manifest& manifest, int64_t pages_per_request);

  // One for each rank that has any of the pages; without spans.
  const std::vector<PullLane>& lanes() const { return lanes_; }

  std::optional<PullTurn> next(size_t lane, int64_t ready) const override;
  PullJob take(size_t lane, int64_t ready) override;
  void add_scores(const PullJob& job, const std::vector<float>& scores) override;
  // Named pages have no layers and no hot lists.
  int64_t num_pages(int64_t) const override { return 0; }
  std::optional<int64_t> num_hot_pages(int64_t) const override { return 0; }

 private:
  struct Lane {
    std::vector<PageRun> runs;
    size_t next = 0;
  };
  size_t lane_of(int shard, const Manifest& manifest);

  std::vector<PullLane> lanes_;
  std::vector<Lane> work_;
};

}  // namespace millrace::kvclient
