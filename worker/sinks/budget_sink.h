// SPDX-License-Identifier: Apache-2.0
// Used where a request wants a smaller cache. Passes the layers on, keeps the last rows' scores of
// all pages, and at the end chooses which pages stay, by layer and kv head
// (kvstore/rules/page_budget.h). Ranks of one tensor-parallel group, including those with replicas
// of a kv head, come to the same choice; context-parallel ranks have the same scores. Used by the
// engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/api/communicator.h"
#include "common/kept_pages.h"
#include "engine/kv_sink.h"
#include "kvstore/rules/page_budget.h"
#include "model/weights.h"

namespace millrace::worker {

// Whether a request with this budget keeps less than everything. 0 means no budget.
inline bool drops_pages(double budget) {
  return budget > 0 && budget < 1;
}

struct BudgetChoice {
  KeptPages kept;  // of the whole model
  // Share of the last rows' attention to the prompt: mean over layers and kv heads.
  double dropped_mass = 0;
};

class BudgetSink final : public engine::KvSink {
 public:
  // `inner` may be null: nobody wants the layers. All arguments but the budget outlive the sink.
  // `choice`: empty, or used instead of kvstore::choose_kept_pages.
  BudgetSink(double budget, const model::ModelWeights& weights, int64_t num_tokens,
             engine::KvSink* inner, kvstore::PageChoice choice = {});

  bool stages_layers() const override { return inner_ == nullptr || inner_->stages_layers(); }
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override;
  Result<void> write_layer(const engine::LayerKv& kv) override;
  Result<void> finish() override;

  // Collective over `tp`, after the last layer. kInternal: a score is not a number.
  Result<BudgetChoice> choose(comm::Communicator& tp, Deadline deadline) const;

 private:
  // Mean over all query heads of each kv head.
  Result<kvstore::PageScores> scores_of_model(comm::Communicator& tp, Deadline deadline) const;

  const double budget_;
  const model::ModelWeights& weights_;
  const int64_t num_pages_;
  engine::KvSink* const inner_;
  const kvstore::PageChoice choice_;
  std::vector<float> scores_;  // [layers, kv heads of this rank, pages]
};

}  // namespace millrace::worker
