// SPDX-License-Identifier: Apache-2.0
#include "kvclient/order/pull_plan.h"

#include "kvclient/order/criticality_plan.h"
#include "kvclient/order/position_plan.h"

namespace millrace::kvclient {

std::unique_ptr<PullPlan> make_pull_plan(const PullPlanOptions& options, const PullPart& part,
                                         const Manifest& manifest,
                                         const std::vector<PullLane>& lanes) {
  if (options.order == PullOrder::kCriticality) {
    return std::make_unique<CriticalityPlan>(options, part, manifest, lanes);
  }
  return std::make_unique<PositionPlan>(part, manifest, lanes, options.pages_per_request);
}

}  // namespace millrace::kvclient
