// In which order a pull takes what it has to take from its ranks. Lanes are the task's, in its order.
// Not thread-safe.
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

// Of a job; the least is taken first.
struct PullTurn {
  int step = 0;
  int64_t layer = 0;  // of those asked for

  auto operator<=>(const PullTurn&) const = default;
};

class PullPlan {
 public:
  virtual ~PullPlan() = default;

  // The next job of a lane while the first `ready` layers can be pulled; none where there is none now.
  virtual std::optional<PullTurn> next(size_t lane, int64_t ready) const = 0;
  // That job.
  virtual PullJob take(size_t lane, int64_t ready) = 0;
  // What a job for scores brought: finite and not negative, as many as it asked for.
  virtual void add_scores(const PullJob& job, const std::vector<float>& scores) = 0;
  // Of a layer, counted from the first asked for.
  virtual int64_t num_pages(int64_t layer) const = 0;
  // Those of a layer that are on the hot list; none while that is not known.
  virtual std::optional<int64_t> num_hot_pages(int64_t layer) const = 0;
};

struct PullPlanOptions {
  PullOrder order = PullOrder::kPosition;
  double hot_share = kDefaultHotShare;
  int64_t pages_per_request = 1;
  // Scores are asked for one layer at a time, the next once they have come: where nothing says which
  // layers are there.
  bool scores_by_layer = false;
};

// `lanes`: pull_lanes() of this part and manifest. Pages that are not kept are in no job.
std::unique_ptr<PullPlan> make_pull_plan(const PullPlanOptions& options, const PullPart& part,
                                         const Manifest& manifest,
                                         const std::vector<PullLane>& lanes);

}  // namespace millrace::kvclient
