// SPDX-License-Identifier: Apache-2.0
// One prompt on its way through the layers on one rank: the state behind Engine::prefill.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/dense_rows.h"
#include "engine/engine.h"
#include "engine/exchange/kv_exchange.h"
#include "engine/index/asked_rows.h"
#include "engine/index/index_builder.h"
#include "engine/index/layer_index.h"
#include "engine/index/pair_counts.h"
#include "engine/layers_in_flight.h"
#include "engine/page_scorer.h"
#include "engine/phase_clock.h"
#include "engine/recall_meter.h"

namespace millrace::engine {

class PrefillRun {
 public:
  // Allocates the memory of the whole request; kExhausted, with the numbers, when it does not fit.
  // `layer_timeout`: how long to wait for work under way when the run ends.
  // `context` and `task` outlive the run.
  static Result<std::unique_ptr<PrefillRun>> create(const EngineContext& context,
                                                    Partition partition, const PrefillTask& task,
                                                    Duration layer_timeout);

  PrefillRun(const PrefillRun&) = delete;
  PrefillRun& operator=(const PrefillRun&) = delete;
  ~PrefillRun();

  // take_buffers() allocates what other ranks push into, once all ranks have their own memory.
  // connect() is collective and follows once all ranks have taken their buffers.
  Result<void> take_buffers();
  Result<void> connect(Deadline deadline);
  Result<void> embed(Deadline deadline);

  // A layer goes through the next three calls, each made for all layers in order. On a device whose
  // calls return before their work is done, layer l + 1 is enqueued before layer l is closed, so
  // that the device does not wait for the host. This requires that the sinks of all ranks get all
  // they need in stage_layer(). Whether this holds for this rank:
  bool may_enqueue_ahead() const;
  // Collective: has the device compute the layer.
  Result<void> enqueue_layer(int32_t layer, Deadline deadline);
  // Has the sink take the K and V of the layer enqueued last. close_layer() reports a failure.
  void stage_layer(int32_t layer);
  // Waits until the device has finished the layer and reads what it left. Returns this rank's
  // pairs. Added up over all ranks, `covered` and `causal` count the same rows.
  Result<RankPairs> close_layer(int32_t layer, Deadline deadline);
  // Another rank is gone. The device's work may wait for it, so the run does not wait for the
  // device.
  void group_broke() { group_broke_ = true; }

  // Whether all rows attend. The last layer computes only what is asked of it (asked_rows.h),
  // unless the task looks at its index or at each head's recall.
  bool attends_whole(int32_t layer) const {
    return !is_last(layer) || task_.recall_by_head || task_.index_tap;
  }

  // Collective: fills the tokens of the result.
  Result<void> finish(PrefillResult& result, Deadline deadline);
  void finish_probe(size_t probe, std::span<const float> logits, PrefillResult& result) const;
  // Waits for the sink to have all layers.
  Result<void> finish_sink();

  PhaseTimes& phases() { return phases_; }
  const RecallMeter& recall() const { return *recall_; }
  int64_t index_bytes() const { return index_.bytes(); }

 private:
  PrefillRun(const EngineContext& context, Partition partition, const PrefillTask& task,
             Duration layer_timeout);

  // A row tile of all ranks, and this rank's rows in it.
  struct RowRange {
    int64_t tile = 0;
    int64_t first = 0;
    int64_t count = 0;  // may be 0 in the last tile
  };

  Result<void> allocate();
  Result<void> allocate_attention();
  Result<void> allocate_logits();
  // With several context-parallel ranks, the rows of layer l + 1 are projected tile by tile behind
  // the MLP of layer l, so that K and V travel meanwhile.
  bool projects_ahead() const { return context_.groups.cp->size() > 1; }
  bool is_last(int32_t layer) const { return layer + 1 == weights_.config.num_layers; }
  const std::vector<kernels::RowTile>& attending_tiles(int32_t layer) const {
    return attends_whole(layer) ? tiles_ : asked_rows_.tiles();
  }
  kernels::IndexView index_view(int32_t layer) const;
  double causal_pairs(int32_t layer) const;
  void count_by_head(int32_t layer, std::span<const int64_t> covered);
  Result<void> project(int32_t layer, const RowRange& rows, Deadline deadline);
  Result<void> project_rows(int32_t layer, const RowRange& rows, Deadline deadline);
  Result<void> build_index(int32_t layer, Deadline deadline);
  Result<void> attend(int32_t layer, Deadline deadline);
  LastLse last_lse() const;
  LocalQueries local_queries() const;
  Result<void> finish_rows(int32_t layer, Deadline deadline);
  Result<void> finish_tile(int32_t layer, const RowRange& rows, Deadline deadline);
  Result<void> wait_for_device(int32_t layer, Deadline deadline);
  // Returns `why` where the process does not end.
  Error end_process(const Error& why) const;
  Result<void> sum_over_tp(std::string_view what, float* data, int64_t count, Deadline deadline);
  Result<std::vector<float>> logits(std::span<const int64_t> positions, Deadline deadline);
  // Calls body(RowRange) for all GEMM-sized row tiles.
  template <typename Body>
  Result<void> for_row_tiles(Body&& body);

  const EngineContext& context_;
  kernels::Device& device_;             // the context's
  const model::ModelWeights& weights_;  // the context's
  Partition partition_;
  const PrefillTask& task_;
  Duration layer_timeout_;

  int64_t num_rows_;  // of this rank
  std::vector<int32_t> positions_;
  std::vector<kernels::RowTile> tiles_;
  AskedRows asked_rows_;
  float scale_;

  kernels::DeviceBuffer device_tokens_;     // [num_rows] int32
  kernels::DeviceBuffer device_positions_;  // [num_rows] int32
  kernels::DeviceBuffer hidden_;            // [num_rows, hidden] float32: the residual stream
  kernels::DeviceBuffer
      partial_;  // [row tile, hidden] float32: products that do not go to hidden_ at once
  kernels::DeviceBuffer q_;         // [num_rows, query heads, head_dim]
  kernels::DeviceBuffer attended_;  // [num_rows, query heads, head_dim]
  kernels::DeviceBuffer lse_;       // [query heads, num_rows]; without dense rows dealt out
  // [query heads, then heads of dense rows dealt to this rank] int64: covered pairs of the layer
  // enqueued last.
  kernels::DeviceBuffer head_pairs_;
  // Layer l is in place l % kLayersInFlight until close_layer(l).
  struct InFlight {
    kernels::HostBuffer head_pairs;
    kernels::TimeMark end{};
  };
  std::array<InFlight, kLayersInFlight> in_flight_;
  InFlight& in_flight(int32_t layer) {
    return in_flight_[static_cast<size_t>(layer % kLayersInFlight)];
  }
  bool group_broke_ = false;
  std::unique_ptr<KvExchange> exchange_;
  // Declared after the exchange, so that its shared memory is taken last and given back first: the
  // next request then finds memory of the sizes that it asks for (comm/nccl).
  std::unique_ptr<DenseRows> dense_rows_;
  LayerIndex index_;
  std::unique_ptr<IndexBuilder> index_builder_;

  std::unique_ptr<PageScorer> scorer_;
  std::unique_ptr<RecallMeter> recall_;

  // On ranks that compute logits, for as many positions as are asked for at a time.
  kernels::DeviceBuffer logit_rows_;    // [positions, hidden] float32
  kernels::DeviceBuffer logit_slices_;  // [positions, vocabulary of this rank] float32

  Result<void> staged_ = {};  // whether the sink took all layers so far
  Result<void> loaded_ = {};  // whether this rank had all of the prefix it was to bring

  PhaseTimes phases_;
  PhaseClock clock_;
};

}  // namespace millrace::engine
