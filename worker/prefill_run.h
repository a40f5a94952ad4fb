// One prompt on its way through the layers of one rank: the state behind Engine::prefill.
#pragma once

#include <memory>
#include <vector>

#include "worker/engine.h"
#include "worker/index_builder.h"
#include "worker/kv_exchange.h"
#include "worker/layer_index.h"

namespace millrace::worker {

class PrefillRun {
 public:
  // Takes the memory of the whole request; kExhausted with the numbers when it does not fit.
  static Result<std::unique_ptr<PrefillRun>> create(kernels::Device& device,
                                                    const model::ModelWeights& weights,
                                                    const RankGrid& grid,
                                                    const EngineOptions& options,
                                                    model::LayerForward& forward,
                                                    Partition partition, const PrefillTask& task);

  Result<void> embed();
  Result<void> run_layer(int32_t layer, Deadline deadline);
  // Covered and causal (query, key) pairs of the last layer, this rank's rows and heads.
  double covered_pairs() const { return covered_pairs_; }
  double causal_pairs() const { return causal_pairs_; }
  // Fills the tokens of the result. Collective.
  Result<void> finish(PrefillResult& result, Deadline deadline);

  PhaseTimes& phases() { return phases_; }
  double recall_sum() const { return recall_sum_; }
  double recall_count() const { return recall_count_; }
  int64_t index_bytes() const { return index_.bytes(); }

 private:
  PrefillRun(kernels::Device& device, const model::ModelWeights& weights, const RankGrid& grid,
             const EngineOptions& options, model::LayerForward& forward, Partition partition,
             const PrefillTask& task);

  Result<void> allocate();
  void project(int32_t layer);
  Result<void> gather_last_queries(Deadline deadline);
  void attend();
  Result<void> finish_rows(int32_t layer, Deadline deadline);
  Result<void> score_pages(int32_t layer, Deadline deadline);
  void score_heads(int32_t layer, const std::vector<int32_t>& heads, const float* lse,
                   bool any_tile, std::vector<float>& scores);
  Result<void> add_over_tp(int64_t first_row, int64_t num_rows, Deadline deadline);
  void count_pairs();
  kernels::LastRows last_rows() const;
  bool owns_last_tile() const;
  // Calls body(first row, rows) over this rank's rows in GEMM-sized tiles.
  template <typename Body>
  Result<void> for_row_tiles(Body&& body);

  kernels::Device& device_;
  const model::ModelWeights& weights_;
  const RankGrid& grid_;
  const EngineOptions& options_;
  model::LayerForward& forward_;
  Partition partition_;
  const PrefillTask& task_;

  int64_t num_rows_;  // of this rank
  std::vector<int32_t> positions_;
  std::vector<kernels::RowTile> tiles_;
  std::vector<int64_t> last_positions_;  // of the prompt's last rows
  float scale_;

  kernels::DeviceBuffer hidden_;    // [num_rows, hidden] float32: the residual stream
  kernels::DeviceBuffer partial_;   // [row tile, hidden] float32: products before the sum over tp
  kernels::DeviceBuffer q_;         // [num_rows, query heads, head_dim]
  kernels::DeviceBuffer attended_;  // [num_rows, query heads, head_dim]
  kernels::DeviceBuffer lse_;       // [query heads, num_rows]
  kernels::DeviceBuffer last_q_;    // [last rows, query heads, head_dim]
  std::unique_ptr<KvExchange> exchange_;
  LayerIndex index_;
  std::unique_ptr<IndexBuilder> index_builder_;

  PhaseTimes phases_;
  std::vector<float> page_scores_;  // [kv heads, num pages]
  double covered_pairs_ = 0;
  double causal_pairs_ = 0;
  double recall_sum_ = 0;
  double recall_count_ = 0;
};

}  // namespace millrace::worker
