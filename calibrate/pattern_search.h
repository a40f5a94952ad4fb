// SPDX-License-Identifier: Apache-2.0
// MInference's kernel-aware search, over all layers and heads of a model: among patterns that take
// the same time, it chooses the one with the least error of the head's output.
//
// Looks at each layer of each prompt twice, because a budget holds for all prompts:
//   fit      finds for each ladder the highest rung whose time is within the budget, by bisection
//            over real indices. Afterwards the rung of a head is the mean over the prompts, rounded
//            down; if prompts differ much, its time may deviate somewhat from the budget.
//   compare  at that rung: time, density, error.
// A ladder whose lowest rung is too slow on some prompt is not a candidate for that head. Among
// equal errors the faster pattern wins, then the earlier ladder. Heads of a layer that is never
// looked at run densely. There are no clocks and no random numbers: the same prompts and costs give
// the same choices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/kernel_costs.h"
#include "calibrate/ladder.h"
#include "calibrate/layer_trial.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "plan/head_plan.h"

namespace millrace::calibrate {

struct SearchOptions {
  double time = 0.25;  // budget of a head: share of dense attention's time for it, (0, 1]
  double max_error =
      -1;  // heads whose least error is larger run densely; negative: any error is fine
};

// The choice for a head; means over the prompts.
struct HeadChoice {
  plan::HeadPattern pattern;
  double time = 1;     // share of dense attention's
  double density = 1;  // share of the causal pairs
  double error = 0;    // LayerTrial::errors
};

class PatternSearch {
 public:
  // `dense_cost`: of the device; by it, a prefill runs heads densely whose lists would not pay off
  // (plan/plan_for_length.h). Requires at least one ladder.
  PatternSearch(const SearchOptions& options, std::vector<Ladder> ladders, const KernelCosts& costs,
                const kernels::SparseCost& dense_cost, int32_t num_layers, int32_t num_heads);

  // Call fit() for each layer of each prompt, taken by the trial; then settle() once; then
  // compare() likewise.
  Result<void> fit(int32_t layer, LayerTrial& trial);
  // Fixes the rungs.
  void settle();
  Result<void> compare(int32_t layer, LayerTrial& trial);

  // The choice for a head; after compare().
  HeadChoice choose(int32_t layer, int32_t head) const;

  const std::vector<Ladder>& ladders() const { return ladders_; }

 private:
  static constexpr int32_t kNone = -1;  // no rung is within the budget

  // A candidate is a ladder for a head.
  struct Candidate {
    int64_t rungs = 0;     // sum over prompts
    bool fits = true;      // on all of them
    int32_t rung = kNone;  // settled
    double time = 0;       // sums over prompts
    double density = 0;
    double error = 0;
  };
  // The pattern of each head at its rung; at the ladder's lowest rung where that is kNone.
  std::vector<plan::HeadPattern> patterns_at(const Ladder& ladder,
                                             std::span<const int32_t> rungs) const;
  Result<std::vector<int32_t>> highest_within_budget(const Ladder& ladder, LayerTrial& trial) const;
  double share_of(const plan::HeadPattern& pattern, const HeadWork& work,
                  const LayerTrial& trial) const;
  std::span<Candidate> candidates(int32_t layer, size_t ladder);
  const Candidate& candidate(int32_t layer, size_t ladder, int32_t head) const;

  SearchOptions options_;
  std::vector<Ladder> ladders_;
  KernelCosts costs_;
  kernels::SparseCost dense_cost_;
  int32_t num_heads_;
  std::vector<Candidate> candidates_;  // [layers, ladders, heads]
  // [layers] how many prompts a layer was looked at with.
  std::vector<int64_t> num_fitted_, num_compared_;
};

}  // namespace millrace::calibrate
