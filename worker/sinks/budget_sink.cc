// SPDX-License-Identifier: Apache-2.0
#include "worker/sinks/budget_sink.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::worker {

BudgetSink::BudgetSink(double budget, const model::ModelWeights& weights, int64_t num_tokens,
                       engine::KvSink* inner, kvstore::PageChoice choice)
    : budget_(budget),
      weights_(weights),
      num_pages_(ceil_div(num_tokens, kPageTokens)),
      inner_(inner),
      choice_(std::move(choice)),
      scores_(static_cast<size_t>(int64_t{weights.config.num_layers} * weights.shard.num_kv_heads *
                                  num_pages_)) {}

Result<void> BudgetSink::stage_layer(int32_t layer, const engine::LocalKv& local) {
  return inner_ == nullptr ? Result<void>() : inner_->stage_layer(layer, local);
}

Result<void> BudgetSink::write_layer(const engine::LayerKv& kv) {
  const int64_t layer_scores = weights_.shard.num_kv_heads * num_pages_;
  MR_CHECK(std::ssize(kv.page_scores) == layer_scores, "{} scores of {}", kv.page_scores.size(),
           layer_scores);
  std::ranges::copy(kv.page_scores, scores_.begin() + kv.layer * layer_scores);
  return inner_ == nullptr ? Result<void>() : inner_->write_layer(kv);
}

Result<void> BudgetSink::finish() {
  return inner_ == nullptr ? Result<void>() : inner_->finish();
}

Result<kvstore::PageScores> BudgetSink::scores_of_model(comm::Communicator& tp,
                                                        Deadline deadline) const {
  const auto& shard = weights_.shard;
  const auto& config = weights_.config;
  kvstore::PageScores all{.num_layers = config.num_layers,
                          .num_kv_heads = config.num_kv_heads,
                          .num_pages = num_pages_};
  const auto layer_scores = static_cast<size_t>(config.num_kv_heads * num_pages_);
  const auto own_scores = static_cast<size_t>(shard.num_kv_heads * num_pages_);
  all.values.resize(static_cast<size_t>(config.num_layers) * layer_scores);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    const auto of_layer = std::span(all.values).subspan(at * layer_scores, layer_scores);
    const auto own = std::span(scores_).subspan(at * own_scores, own_scores);
    // Each replica of a kv head has equally many query heads.
    std::ranges::transform(
        own, of_layer.begin() + shard.first_kv_head * num_pages_,
        [&](float score) { return score / static_cast<float>(shard.kv_replicas); });
    MR_RETURN_IF_ERROR(tp.all_reduce_sum(of_layer, deadline));
    // Caused by weights that are not numbers; the same on all ranks.
    if (!std::ranges::all_of(of_layer, [](float score) { return std::isfinite(score); })) {
      return error(Errc::kInternal, "layer {}: page scores that are no numbers", layer);
    }
  }
  return all;
}

Result<BudgetChoice> BudgetSink::choose(comm::Communicator& tp, Deadline deadline) const {
  MR_ASSIGN_OR_RETURN(const auto scores, scores_of_model(tp, deadline));
  BudgetChoice chosen{.kept = choice_ ? choice_(budget_, scores)
                                      : kvstore::choose_kept_pages(budget_, scores)};
  for (int32_t layer = 0; layer < scores.num_layers; ++layer) {
    for (int32_t head = 0; head < scores.num_kv_heads; ++head) {
      double mass = 0, dropped = 0;
      for (int64_t page = 0; page < num_pages_; ++page) {
        const double score = scores.of(layer, head)[static_cast<size_t>(page)];
        mass += score;
        if (!chosen.kept.has(layer, head, page)) dropped += score;
      }
      if (mass > 0) chosen.dropped_mass += dropped / mass;
    }
  }
  chosen.dropped_mass /= static_cast<double>(scores.num_layers * scores.num_kv_heads);
  return chosen;
}

}  // namespace millrace::worker
