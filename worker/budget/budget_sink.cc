#include "worker/budget/budget_sink.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::worker {

BudgetSink::BudgetSink(double budget, const model::ModelWeights& weights, int64_t num_tokens,
                       KvSink* inner, kvstore::PageChoice choice)
    : budget_(budget),
      weights_(weights),
      num_pages_(ceil_div(num_tokens, kPageTokens)),
      inner_(inner),
      choice_(std::move(choice)),
      scores_(static_cast<size_t>(int64_t{weights.config.num_layers} * weights.shard.num_kv_heads *
                                  num_pages_)) {}

Result<void> BudgetSink::stage_layer(int32_t layer, const LocalKv& local) {
  return inner_ == nullptr ? Result<void>() : inner_->stage_layer(layer, local);
}

Result<void> BudgetSink::write_layer(const LayerKv& kv) {
  const int64_t layer_scores = weights_.shard.num_kv_heads * num_pages_;
  MR_CHECK(std::ssize(kv.page_scores) == layer_scores, "{} scores of {}", kv.page_scores.size(),
           layer_scores);
  std::ranges::copy(kv.page_scores, scores_.begin() + kv.layer * layer_scores);
  return inner_ == nullptr ? Result<void>() : inner_->write_layer(kv);
}

Result<void> BudgetSink::finish() {
  return inner_ == nullptr ? Result<void>() : inner_->finish();
}

Result<std::vector<float>> BudgetSink::scores_of_model(int32_t layer, comm::Communicator& tp,
                                                       Deadline deadline) const {
  const auto& shard = weights_.shard;
  std::vector<float> all(static_cast<size_t>(weights_.config.num_kv_heads * num_pages_));
  const auto own =
      std::span(scores_).subspan(static_cast<size_t>(layer * shard.num_kv_heads * num_pages_),
                                 static_cast<size_t>(shard.num_kv_heads * num_pages_));
  // Replicas of a kv head have as many query heads each.
  std::ranges::transform(own, all.begin() + shard.first_kv_head * num_pages_, [&](float score) {
    return score / static_cast<float>(shard.kv_replicas);
  });
  MR_RETURN_IF_ERROR(tp.all_reduce_sum(all, deadline));
  return all;
}

Result<BudgetChoice> BudgetSink::choose(comm::Communicator& tp, Deadline deadline) const {
  const auto& config = weights_.config;
  BudgetChoice chosen{.kept = KeptPages(config.num_layers, config.num_kv_heads, num_pages_)};
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    MR_ASSIGN_OR_RETURN(const auto all, scores_of_model(layer, tp, deadline));
    // Of weights that are no numbers; the same on all ranks.
    if (!std::ranges::all_of(all, [](float score) { return std::isfinite(score); })) {
      return error(Errc::kInternal, "layer {}: page scores that are no numbers", layer);
    }
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      const auto scores = std::span(all).subspan(static_cast<size_t>(head * num_pages_),
                                                 static_cast<size_t>(num_pages_));
      const auto kept = choice_ ? choice_(layer, head, budget_, scores)
                                : kvstore::choose_kept_pages(budget_, scores);
      double mass = 0, dropped = 0;
      for (int64_t page = 0; page < num_pages_; ++page) {
        const auto at = static_cast<size_t>(page);
        mass += double{scores[at]};
        if (kept[at]) {
          chosen.kept.keep(layer, head, page);
        } else {
          dropped += double{scores[at]};
        }
      }
      if (mass > 0) chosen.dropped_mass += dropped / mass;
    }
  }
  chosen.dropped_mass /= static_cast<double>(config.num_layers * config.num_kv_heads);
  return chosen;
}

}  // namespace millrace::worker
