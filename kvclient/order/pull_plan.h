// SPDX-License-Identifier: Apache-2.0
// The order in which a pull makes its requests to ranks. Lanes are the task's, in its order. Not
// thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvclient/order/pull_job.h"
#include "kvclient/order/pull_lanes.h"
#include "kvclient/order/pull_order.h"

namespace millrace::kvclient {

// The place of a job in this order; the least is taken first.
struct PullTurn {
  int step = 0;
  int64_t layer = 0;  // counted from the first asked for

  auto operator<=>(const PullTurn&) const = default;
};

class PullPlan {
 public:
  virtual ~PullPlan() = default;

  // The turn of a lane's next job while the first `ready` layers can be pulled; none if there is no
  // job now.
  virtual std::optional<PullTurn> next(size_t lane, int64_t ready) const = 0;
  // Takes that job.
  virtual PullJob take(size_t lane, int64_t ready) = 0;
  // The scores that a job brought: finite and not negative, as many as it asked for.
  virtual void add_scores(const PullJob& job, const std::vector<float>& scores) = 0;
  // Pages of a layer, which is counted from the first asked for.
  virtual int64_t num_pages(int64_t layer) const = 0;
  // Pages of a layer on its hot list; none while the list is not known.
  virtual std::optional<int64_t> num_hot_pages(int64_t layer) const = 0;
};

struct PullPlanOptions {
  PullOrder order = PullOrder::kPosition;
  double hot_share = kDefaultHotShare;
  int64_t pages_per_request = 1;
  // Asks for scores one layer at a time, the next once they have come. For pulls that do not know
  // which layers are ready.
  bool scores_by_layer = false;
};

// `lanes`: pull_lanes() of this part and manifest. Pages that are not kept are not in any job.
std::unique_ptr<PullPlan> make_pull_plan(const PullPlanOptions& options, const PullPart& part,
                                         const Manifest& manifest,
                                         const std::vector<PullLane>& lanes);

}  // namespace millrace::kvclient
