// SPDX-License-Identifier: Apache-2.0
#include "calibrate/pattern_search.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "plan/plan_for_length.h"

namespace millrace::calibrate {

PatternSearch::PatternSearch(const SearchOptions& options, std::vector<Ladder> ladders,
                             const KernelCosts& costs, const kernels::SparseCost& dense_cost,
                             int32_t num_layers, int32_t num_heads)
    : options_(options),
      ladders_(std::move(ladders)),
      costs_(costs),
      dense_cost_(dense_cost),
      num_heads_(num_heads),
      candidates_(static_cast<size_t>(num_layers * num_heads) * ladders_.size()),
      num_fitted_(static_cast<size_t>(num_layers)),
      num_compared_(num_fitted_) {
  MR_CHECK(!ladders_.empty(), "a search without candidates");
}

std::span<PatternSearch::Candidate> PatternSearch::candidates(int32_t layer, size_t ladder) {
  const auto heads = static_cast<size_t>(num_heads_);
  const size_t first = (static_cast<size_t>(layer) * ladders_.size() + ladder) * heads;
  return std::span(candidates_).subspan(first, heads);
}

const PatternSearch::Candidate& PatternSearch::candidate(int32_t layer, size_t ladder,
                                                         int32_t head) const {
  const size_t row = static_cast<size_t>(layer) * ladders_.size() + ladder;
  return candidates_[row * static_cast<size_t>(num_heads_) + static_cast<size_t>(head)];
}

// A head that a prefill would run densely takes dense attention's time.
double PatternSearch::share_of(const plan::HeadPattern& pattern, const HeadWork& work,
                               const LayerTrial& trial) const {
  const auto& last = trial.tiles().back();
  if (plan::is_cheaper_dense(pattern, last.position + last.num_rows, dense_cost_)) return 1;
  return time_share(costs_, pattern, work, dense_work(trial.tiles()));
}

std::vector<plan::HeadPattern> PatternSearch::patterns_at(const Ladder& ladder,
                                                          std::span<const int32_t> rungs) const {
  std::vector<plan::HeadPattern> patterns;
  for (const int32_t rung : rungs) {
    patterns.push_back(ladder[static_cast<size_t>(std::max(rung, 0))]);
  }
  return patterns;
}

// All heads bisect at once, because an index covers all heads.
Result<std::vector<int32_t>> PatternSearch::highest_within_budget(const Ladder& ladder,
                                                                  LayerTrial& trial) const {
  const auto heads = static_cast<size_t>(num_heads_);
  std::vector<int32_t> within(heads, kNone);
  std::vector<int32_t> beyond(heads, static_cast<int32_t>(ladder.size()));
  while (true) {
    std::vector<int32_t> middle(heads);
    bool done = true;
    for (size_t head = 0; head < heads; ++head) {
      middle[head] = (within[head] + beyond[head]) / 2;
      done = done && within[head] + 1 == beyond[head];
    }
    if (done) return within;
    const auto patterns = patterns_at(ladder, middle);
    MR_RETURN_IF_ERROR(trial.build(patterns));
    MR_ASSIGN_OR_RETURN(const auto work, trial.count());
    for (size_t head = 0; head < heads; ++head) {
      if (within[head] + 1 == beyond[head]) continue;
      const bool fits = share_of(patterns[head], work[head], trial) <= options_.time;
      (fits ? within : beyond)[head] = middle[head];
    }
  }
}

Result<void> PatternSearch::fit(int32_t layer, LayerTrial& trial) {
  for (size_t ladder = 0; ladder < ladders_.size(); ++ladder) {
    MR_ASSIGN_OR_RETURN(const auto rungs, highest_within_budget(ladders_[ladder], trial));
    const auto heads = candidates(layer, ladder);
    for (size_t head = 0; head < heads.size(); ++head) {
      heads[head].rungs += rungs[head];
      heads[head].fits = heads[head].fits && rungs[head] != kNone;
    }
  }
  ++num_fitted_[static_cast<size_t>(layer)];
  return {};
}

void PatternSearch::settle() {
  for (size_t layer = 0; layer < num_fitted_.size(); ++layer) {
    const int64_t num_prompts = num_fitted_[layer];
    for (size_t ladder = 0; ladder < ladders_.size(); ++ladder) {
      for (Candidate& head : candidates(static_cast<int32_t>(layer), ladder)) {
        const bool fits = head.fits && num_prompts > 0;
        head.rung = fits ? static_cast<int32_t>(head.rungs / num_prompts) : kNone;
      }
    }
  }
}

Result<void> PatternSearch::compare(int32_t layer, LayerTrial& trial) {
  const auto causal_pairs = static_cast<double>(dense_work(trial.tiles()).pairs);
  for (size_t ladder = 0; ladder < ladders_.size(); ++ladder) {
    const auto heads = candidates(layer, ladder);
    std::vector<int32_t> rungs;
    for (const Candidate& head : heads) rungs.push_back(head.rung);
    if (std::ranges::all_of(rungs, [](int32_t rung) { return rung == kNone; })) continue;
    const auto patterns = patterns_at(ladders_[ladder], rungs);
    MR_RETURN_IF_ERROR(trial.build(patterns));
    MR_ASSIGN_OR_RETURN(const auto work, trial.count());
    trial.attend();
    MR_ASSIGN_OR_RETURN(const auto errors, trial.errors());
    for (size_t head = 0; head < heads.size(); ++head) {
      heads[head].time += share_of(patterns[head], work[head], trial);
      heads[head].density += static_cast<double>(work[head].pairs) / causal_pairs;
      heads[head].error += errors[head];
    }
  }
  ++num_compared_[static_cast<size_t>(layer)];
  return {};
}

HeadChoice PatternSearch::choose(int32_t layer, int32_t head) const {
  const auto num_prompts = static_cast<double>(num_compared_[static_cast<size_t>(layer)]);
  HeadChoice best;  // dense: used where nothing, or everything, is within the budget
  bool found = options_.time >= 1;
  for (size_t ladder = 0; ladder < ladders_.size(); ++ladder) {
    const Candidate& tried = candidate(layer, ladder, head);
    if (tried.rung == kNone) continue;
    const HeadChoice choice{.pattern = ladders_[ladder][static_cast<size_t>(tried.rung)],
                            .time = tried.time / num_prompts,
                            .density = tried.density / num_prompts,
                            .error = tried.error / num_prompts};
    const bool better = std::pair(choice.error, choice.time) < std::pair(best.error, best.time);
    if (!found || better) best = choice;
    found = true;
  }
  const bool refused = options_.max_error >= 0 && !(best.error <= options_.max_error);
  return refused ? HeadChoice{} : best;
}

}  // namespace millrace::calibrate
