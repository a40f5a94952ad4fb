// SPDX-License-Identifier: Apache-2.0
#include "engine/prefill_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/log.h"
#include "engine/capacity.h"
#include "engine/exchange/row_gather.h"
#include "kernels/index/coverage.h"

namespace millrace::engine {

namespace {

// How often, while waiting for the device, collectives are checked for failure.
constexpr auto kCollectivesCheck = std::chrono::milliseconds(100);
// How long to wait for the work that a broken group left, after the timeout that revealed it.
constexpr auto kBrokenTimeout = std::chrono::seconds(2);

}  // namespace

PrefillRun::PrefillRun(const EngineContext& context, Partition partition, const PrefillTask& task,
                       Duration layer_timeout)
    : context_(context),
      device_(context.device),
      weights_(context.weights),
      partition_(std::move(partition)),
      task_(task),
      layer_timeout_(layer_timeout),
      num_rows_(partition_.num_tokens(context.grid.cp().rank())),
      positions_(partition_.positions(context.grid.cp().rank())),
      tiles_(partition_.tiles(context.grid.cp().rank())),
      asked_rows_(tiles_, partition_.num_tokens(), task.probe_positions,
                  context.options.row_tile_tokens),
      scale_(1.0f / std::sqrt(static_cast<float>(weights_.config.head_dim))),
      clock_(device_, phases_) {}

Result<std::unique_ptr<PrefillRun>> PrefillRun::create(const EngineContext& context,
                                                       Partition partition, const PrefillTask& task,
                                                       Duration layer_timeout) {
  std::unique_ptr<PrefillRun> run(
      new PrefillRun(context, std::move(partition), task, layer_timeout));
  MR_RETURN_IF_ERROR(run->allocate());
  return run;
}

Result<void> PrefillRun::allocate() {
  const auto& config = weights_.config;
  const auto& shard = weights_.shard;
  const int64_t row_bytes =
      int64_t{shard.num_query_heads} * config.head_dim * dtype_bytes(weights_.compute_dtype);
  const int64_t hidden_bytes = int64_t{config.hidden_size} * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(device_tokens_, device_.allocate(num_rows_ * int64_t{sizeof(int32_t)}));
  MR_ASSIGN_OR_RETURN(device_positions_, device_.allocate(num_rows_ * int64_t{sizeof(int32_t)}));
  MR_ASSIGN_OR_RETURN(hidden_, device_.allocate(num_rows_ * hidden_bytes));
  MR_ASSIGN_OR_RETURN(q_, device_.allocate(num_rows_ * row_bytes));
  MR_ASSIGN_OR_RETURN(attended_, device_.allocate(num_rows_ * row_bytes));
  MR_ASSIGN_OR_RETURN(auto exchange,
                      KvExchange::create(device_, partition_, task_.prefix, *context_.groups.cp,
                                         {.num_kv_heads = shard.num_kv_heads,
                                          .first_kv_head = shard.first_kv_head,
                                          .head_dim = config.head_dim,
                                          .dtype = weights_.compute_dtype},
                                         context_.options.row_tile_tokens));
  exchange_ = std::make_unique<KvExchange>(std::move(exchange));
  MR_RETURN_IF_ERROR(allocate_attention());
  MR_ASSIGN_OR_RETURN(index_,
                      LayerIndex::create(device_, *task_.plan, shard.first_query_head,
                                         shard.num_query_heads, partition_.num_tokens(), tiles_));
  MR_ASSIGN_OR_RETURN(
      auto builder,
      IndexBuilder::create(device_, *context_.groups.cp, *task_.plan,
                           {.first = shard.first_query_head, .count = shard.num_query_heads},
                           partition_.num_tokens(), index_.view().shape));
  index_builder_ = std::make_unique<IndexBuilder>(std::move(builder));
  MR_ASSIGN_OR_RETURN(auto scorer, PageScorer::create(device_, *context_.groups.cp,
                                                      partition_.num_tokens(), shard));
  scorer_ = std::make_unique<PageScorer>(std::move(scorer));
  MR_ASSIGN_OR_RETURN(
      auto recall,
      RecallMeter::create(device_, tiles_, attending_tiles(weights_.config.num_layers - 1),
                          partition_.num_tokens(), *task_.plan, shard, task_.recall_by_head));
  recall_ = std::make_unique<RecallMeter>(std::move(recall));
  if (context_.grid.tp().size() > 1 || config.norms_sums()) {
    MR_ASSIGN_OR_RETURN(partial_,
                        device_.allocate(context_.options.row_tile_tokens * hidden_bytes));
  }
  return allocate_logits();
}

// Allocates the dense rows, and the results of attention for all rows.
Result<void> PrefillRun::allocate_attention() {
  const auto& config = weights_.config;
  const auto& shard = weights_.shard;
  MR_ASSIGN_OR_RETURN(auto dense_rows, DenseRows::create(device_, *context_.groups.cp, partition_,
                                                         {.num_query_heads = shard.num_query_heads,
                                                          .num_kv_heads = shard.num_kv_heads,
                                                          .head_dim = config.head_dim,
                                                          .dtype = weights_.compute_dtype,
                                                          .scale = scale_}));
  dense_rows_ = std::make_unique<DenseRows>(std::move(dense_rows));
  MR_ASSIGN_OR_RETURN(lse_,
                      device_.allocate(num_rows_ * shard.num_query_heads * int64_t{sizeof(float)}));
  int64_t num_pairs = shard.num_query_heads;
  if (dense_rows_->dealt()) num_pairs += dense_rows_->num_dealt_heads();
  MR_ASSIGN_OR_RETURN(head_pairs_, device_.allocate(num_pairs * int64_t{sizeof(int64_t)}));
  for (InFlight& layer : in_flight_) {
    MR_ASSIGN_OR_RETURN(layer.head_pairs, device_.allocate_host(head_pairs_.bytes()));
  }
  return {};
}

// Allocated beforehand, like all memory: a rank that lacked it later would leave the others waiting
// for its part of the vocabulary.
Result<void> PrefillRun::allocate_logits() {
  if (context_.grid.cp().rank() != 0) return {};
  const auto count = std::min(kLogitRows, std::ssize(task_.probe_positions) + 1);
  const int64_t hidden_bytes = int64_t{weights_.config.hidden_size} * int64_t{sizeof(float)};
  const int64_t slice_bytes = weights_.lm_head.rows * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(logit_rows_, device_.allocate(count * hidden_bytes));
  MR_ASSIGN_OR_RETURN(logit_slices_, device_.allocate(count * slice_bytes));
  return {};
}

// A request that ends early may have enqueued a layer and sent data that nobody waits for. Its
// memory must stay until that is done. The layer began only after the one before it was closed, so
// from here on it gets the time that any layer has. On a failed device nothing is under way any
// more. Its first error is what ends the request, and must not be lost to the error of this wait,
// which repeats it.
PrefillRun::~PrefillRun() {
  if (exchange_ == nullptr) return;
  try {
    exchange_->settle();
    const auto settled =
        device_.synchronize(Deadline::after(group_broke_ ? kBrokenTimeout : layer_timeout_));
    if (!settled.ok()) (void)end_process(settled.error());
  } catch (const std::exception& failure) {
    log::error("ending a prompt on {} failed: {}", device_.info().name, failure.what());
  }
}

Result<void> PrefillRun::take_buffers() {
  const auto exchange = exchange_->take_buffers();
  const auto dense_rows = dense_rows_->take_buffers();  // in any case, as on the other ranks
  return exchange.ok() ? dense_rows : exchange;
}

Result<void> PrefillRun::connect(Deadline deadline) {
  MR_RETURN_IF_ERROR(exchange_->connect(deadline));
  return dense_rows_->connect(deadline);
}

// As many tiles as the rank with the most rows has, since a tile's work may include a collective.
template <typename Body>
Result<void> PrefillRun::for_row_tiles(Body&& body) {
  for (int64_t tile = 0; tile < exchange_->num_tiles(); ++tile) {
    const int64_t first = std::min(tile * context_.options.row_tile_tokens, num_rows_);
    MR_RETURN_IF_ERROR(
        body(RowRange{.tile = tile,
                      .first = first,
                      .count = std::min(context_.options.row_tile_tokens, num_rows_ - first)}));
  }
  return {};
}

Result<void> PrefillRun::embed(Deadline deadline) {
  clock_.enter(Phase::kEmbed);
  std::vector<int32_t> own_tokens;
  own_tokens.reserve(positions_.size());
  for (const int32_t position : positions_) {
    own_tokens.push_back(task_.token_ids[static_cast<size_t>(position)]);
  }
  device_.copy(device_tokens_.data(), own_tokens.data(), device_tokens_.bytes());
  device_.copy(device_positions_.data(), positions_.data(), device_positions_.bytes());
  device_.embed({.token_ids = device_tokens_.as<int32_t>(),
                 .num_rows = num_rows_,
                 .table = weights_.embedding,
                 .scale = weights_.embedding_scale,
                 .hidden = hidden_.as<float>()});
  return device_.synchronize(deadline);
}

bool PrefillRun::may_enqueue_ahead() const {
  return !device_.info().host_memory && (task_.sink == nullptr || task_.sink->stages_layers());
}

Result<void> PrefillRun::enqueue_layer(int32_t layer, Deadline deadline) {
  const bool projected = layer > 0 && projects_ahead();
  if (!projected) {
    MR_RETURN_IF_ERROR(
        for_row_tiles([&](const RowRange& rows) { return project(layer, rows, deadline); }));
  }
  clock_.enter(Phase::kExchange);
  dense_rows_->finish_queries();
  exchange_->finish_k();
  clock_.enter(Phase::kEstimate);
  MR_RETURN_IF_ERROR(build_index(layer, deadline));
  clock_.enter(Phase::kExchange);
  exchange_->finish_v();
  clock_.enter(Phase::kAttention);
  MR_RETURN_IF_ERROR(attend(layer, deadline));
  if (task_.prefix_source != nullptr && !is_last(layer)) {
    clock_.enter(Phase::kExchange);
    MR_RETURN_IF_ERROR(
        exchange_->prefetch_prefix(*task_.prefix_source, layer + 1, loaded_, deadline));
  }
  clock_.enter(Phase::kStore);
  recall_->enqueue(layer, local_queries(), lse_.as<float>(), exchange_->slab());
  MR_RETURN_IF_ERROR(scorer_->enqueue(last_lse(), dense_rows_->last_rows(), exchange_->slab(),
                                      weights_.config.window(layer), deadline));
  MR_RETURN_IF_ERROR(finish_rows(layer, deadline));
  clock_.enter(Phase::kStore);
  scorer_->fetch(layer);
  in_flight(layer).end = device_.mark();
  return {};
}

// K goes first: the index is built from it and the last queries.
Result<void> PrefillRun::project(int32_t layer, const RowRange& rows, Deadline deadline) {
  if (rows.tile == 0 && task_.prefix_source != nullptr) {
    clock_.enter(Phase::kExchange);
    scorer_->settle();
    MR_RETURN_IF_ERROR(exchange_->bring_prefix(*task_.prefix_source, layer, loaded_, deadline));
  }
  if (rows.count > 0) {
    clock_.enter(Phase::kQkv);
    MR_RETURN_IF_ERROR(project_rows(layer, rows, deadline));
  }
  MR_RETURN_IF_ERROR(exchange_->send_k(rows.tile, deadline));
  if (rows.tile + 1 == exchange_->num_tiles()) {
    MR_RETURN_IF_ERROR(dense_rows_->send_queries(q_.data(), deadline));
  }
  return exchange_->send_v(rows.tile, deadline);
}

Result<void> PrefillRun::project_rows(int32_t layer, const RowRange& rows, Deadline deadline) {
  const int64_t q_row = int64_t{weights_.shard.num_query_heads} * weights_.config.head_dim *
                        dtype_bytes(weights_.compute_dtype);
  const auto to = exchange_->destination(rows.tile);
  const auto sum_squares = [&](float* data, int64_t count) {
    return sum_over_tp("norms", data, count, deadline);
  };
  const auto run = [&](auto what, int64_t first, int64_t count) {
    return ((*context_.forward).*what)(
        layer, hidden_.as<float>() + first * weights_.config.hidden_size, count,
        device_positions_.as<int32_t>() + first, partition_.num_tokens(),
        {.dtype = weights_.compute_dtype,
         .q = q_.as<std::byte>() + first * q_row,
         .k = to.k,
         .v = to.v,
         .kv_stride = to.stride},
        sum_squares);
  };
  if (attends_whole(layer)) return run(&model::LayerForward::qkv, rows.first, rows.count);
  MR_RETURN_IF_ERROR(run(&model::LayerForward::kv, rows.first, rows.count));
  for (const RowSpan& span : asked_rows_.attending({rows.first, rows.count})) {
    MR_RETURN_IF_ERROR(run(&model::LayerForward::q, span.first, span.count));
  }
  return {};
}

// The index for the tiles that attend in this layer, in the memory for all tiles.
kernels::IndexView PrefillRun::index_view(int32_t layer) const {
  kernels::IndexView view = index_.view();
  view.shape.num_tiles = std::min(view.shape.num_tiles, std::ssize(attending_tiles(layer)));
  return view;
}

Result<void> PrefillRun::build_index(int32_t layer, Deadline deadline) {
  const auto view = index_view(layer);
  if (!attends_whole(layer) && !asked_rows_.reads_index()) {
    index_builder_->build_dense(partition_.num_tokens(), view);
    return {};
  }
  MR_RETURN_IF_ERROR(index_builder_->build(layer, local_queries(), attending_tiles(layer),
                                           dense_rows_->last_rows(), exchange_->slab(), view,
                                           deadline));
  if (!task_.index_tap) return {};
  MR_RETURN_IF_ERROR(device_.synchronize(deadline));
  task_.index_tap({.layer = layer,
                   .plan = task_.plan,
                   .queries = local_queries(),
                   .kv = exchange_->slab(),
                   .tiles = tiles_,
                   .index = view});
  return {};
}

Result<void> PrefillRun::attend(int32_t layer, Deadline deadline) {
  const int32_t num_heads = weights_.shard.num_query_heads;
  auto* pairs = head_pairs_.as<int64_t>();
  const float* sinks = weights_.layers[static_cast<size_t>(layer)].sinks;
  // Dense rows go first: their outputs travel while the other rows attend.
  if (dense_rows_->dealt()) {
    MR_RETURN_IF_ERROR(dense_rows_->attend(exchange_->slab(), weights_.config.window(layer), sinks,
                                           pairs + num_heads, deadline));
  }
  device_.attention({.q = q_.data(),
                     .num_rows = num_rows_,
                     .num_query_heads = num_heads,
                     .scale = scale_,
                     .kv = exchange_->slab(),
                     .tiles = dense_rows_->others(attending_tiles(layer)),
                     .index = index_view(layer),
                     .window = weights_.config.window(layer),
                     .sinks = sinks,
                     .out = attended_.data(),
                     .lse = lse_.as<float>(),
                     .covered_pairs = pairs});
  if (dense_rows_->dealt()) dense_rows_->finish(attended_.data());
  device_.copy(in_flight(layer).head_pairs.as<int64_t>(), head_pairs_.data(), head_pairs_.bytes());
  return {};
}

LocalQueries PrefillRun::local_queries() const {
  return {.q = q_.data(),
          .num_rows = num_rows_,
          .num_query_heads = weights_.shard.num_query_heads,
          .scale = scale_};
}

// The lse of the last rows: from this rank's rows where it has all, else from the dense rows.
LastLse PrefillRun::last_lse() const {
  const bool dealt = dense_rows_->dealt();
  const float* lse = dealt ? dense_rows_->lse() : lse_.as<float>();
  const int64_t num_rows = dealt ? dense_rows_->num_rows() : num_rows_;
  return {.first = lse + num_rows - dense_rows_->last_rows().num_rows, .head_stride = num_rows};
}

Result<void> PrefillRun::sum_over_tp(std::string_view what, float* data, int64_t count,
                                     Deadline deadline) {
  if (context_.grid.tp().size() == 1) return {};
  auto& tp = *context_.groups.tp;
  tp.follow();
  MR_RETURN_IF_ERROR(tp.all_reduce_sum(what, data, count, deadline));
  tp.join(tp.mark());
  return {};
}

Result<void> PrefillRun::finish_rows(int32_t layer, Deadline deadline) {
  if (is_last(layer)) {
    clock_.enter(Phase::kMlp);
    for (const RowSpan& rows : asked_rows_.with_logits()) {
      MR_RETURN_IF_ERROR(finish_tile(layer, {.first = rows.first, .count = rows.count}, deadline));
    }
    return {};
  }
  const bool ahead = projects_ahead();
  return for_row_tiles([&](const RowRange& rows) -> Result<void> {
    if (rows.count > 0) {
      clock_.enter(Phase::kMlp);
      MR_RETURN_IF_ERROR(finish_tile(layer, rows, deadline));
    }
    return ahead ? project(layer + 1, rows, deadline) : Result<void>();
  });
}

Result<void> PrefillRun::finish_tile(int32_t layer, const RowRange& rows, Deadline deadline) {
  const int64_t attended_row = int64_t{weights_.shard.num_query_heads} * weights_.config.head_dim *
                               dtype_bytes(weights_.compute_dtype);
  const bool alone = context_.grid.tp().size() == 1 && !weights_.config.norms_sums();
  float* hidden = hidden_.as<float>() + rows.first * weights_.config.hidden_size;
  float* out = alone ? hidden : partial_.as<float>();
  const int64_t count = rows.count * weights_.config.hidden_size;
  context_.forward->attention_output(layer, attended_.as<std::byte>() + rows.first * attended_row,
                                     rows.count, out, /*accumulate=*/alone);
  if (!alone) {
    MR_RETURN_IF_ERROR(sum_over_tp("sums", out, count, deadline));
    context_.forward->add_attention(layer, out, rows.count, hidden);
  }
  context_.forward->mlp(layer, hidden, rows.count, out, /*accumulate=*/alone);
  if (!alone) {
    MR_RETURN_IF_ERROR(sum_over_tp("sums", out, count, deadline));
    context_.forward->add_mlp(layer, out, rows.count, hidden);
  }
  return {};
}

void PrefillRun::stage_layer(int32_t layer) {
  if (task_.sink == nullptr || !staged_.ok()) return;
  staged_ = task_.sink->stage_layer(layer, exchange_->local());
}

Result<RankPairs> PrefillRun::close_layer(int32_t layer, Deadline deadline) {
  MR_RETURN_IF_ERROR(wait_for_device(layer, deadline));
  clock_.settle(in_flight(layer).end);
  MR_RETURN_IF_ERROR(loaded_);
  MR_RETURN_IF_ERROR(staged_);
  const auto& head_pairs = in_flight(layer).head_pairs;
  const std::span<const int64_t> covered(head_pairs.as<int64_t>(),
                                         static_cast<size_t>(head_pairs.bytes()) / sizeof(int64_t));
  scorer_->collect(layer);
  recall_->collect(layer);
  count_by_head(layer, covered);
  if (task_.sink != nullptr) {
    MR_RETURN_IF_ERROR(task_.sink->write_layer({.layer = layer,
                                                .local = exchange_->local(),
                                                .page_scores = scorer_->page_scores(),
                                                .num_pages = scorer_->num_pages()}));
  }
  return RankPairs{
      .covered = static_cast<double>(std::accumulate(covered.begin(), covered.end(), int64_t{0})),
      .causal = causal_pairs(layer)};
}

// The dense rows of a head may be covered by one rank and causal pairs of another: over all ranks
// they are the same rows.
void PrefillRun::count_by_head(int32_t layer, std::span<const int64_t> covered) {
  const int32_t num_heads = weights_.shard.num_query_heads;
  const double causal = causal_pairs(layer) / num_heads;
  for (int32_t i = 0; i < std::ssize(covered); ++i) {
    const bool own = i < num_heads;
    const int32_t head = own ? i : dense_rows_->first_dealt_head() + i - num_heads;
    recall_->count_pairs(layer, head, static_cast<double>(covered[static_cast<size_t>(i)]),
                         own ? causal : 0);
  }
}

// Over this rank's heads and the rows that attend.
double PrefillRun::causal_pairs(int32_t layer) const {
  double pairs = 0;
  for (const auto& tile : attending_tiles(layer)) {
    pairs += static_cast<double>(kernels::causal_pairs(tile));
  }
  return pairs * weights_.shard.num_query_heads;
}

// A GPU that does not finish waits in a collective for a rank that does not come. Nothing can stop
// it: its memory cannot be freed, and neither kernels nor copy engines reliably check whether to
// stop (docs/adr/0010-nccl-and-copy-engines.md).
Result<void> PrefillRun::wait_for_device(int32_t layer, Deadline deadline) {
  const bool waits_for_ranks = device_.gpu_stream() && context_.grid.world().size() > 1;
  if (!waits_for_ranks) return device_.wait_for(in_flight(layer).end, deadline);
  while (true) {
    const auto done = device_.wait_for(in_flight(layer).end,
                                       deadline.earlier_of(Deadline::after(kCollectivesCheck)));
    if (done.ok()) return {};
    for (const auto* group : {context_.groups.tp.get(), context_.groups.cp.get()}) {
      const auto failed = group->check();
      if (!failed.ok()) return end_process(failed.error());
    }
    if (!deadline.passed()) continue;
    return end_process(error(Errc::kPeerLost,
                             "layer {} of rank {}: {}; another rank did not arrive", layer,
                             context_.grid.world().rank(), done.error().message));
  }
}

Error PrefillRun::end_process(const Error& why) const {
  MR_CHECK(context_.options.end_process, "nobody ends this process: {}", why.to_string());
  context_.options.end_process(why);
  return why;
}

// [positions.size(), vocabulary] on the ranks of the root's tensor-parallel row; empty elsewhere.
Result<std::vector<float>> PrefillRun::logits(std::span<const int64_t> positions,
                                              Deadline deadline) {
  const auto count = static_cast<int64_t>(positions.size());
  const int64_t row_bytes = int64_t{weights_.config.hidden_size} * int64_t{sizeof(float)};
  std::vector<std::byte> rows(static_cast<size_t>(count * row_bytes));
  MR_RETURN_IF_ERROR(gather_rows(device_, partition_, context_.grid.cp(), positions, row_bytes,
                                 hidden_.data(), rows.data(), deadline));
  if (context_.grid.cp().rank() != 0) return std::vector<float>();
  std::vector<float> slices(static_cast<size_t>(count * weights_.lm_head.rows));
  device_.copy(logit_rows_.data(), rows.data(), count * row_bytes);
  context_.forward->logits(logit_rows_.as<float>(), count, logit_slices_.as<float>());
  device_.copy(slices.data(), logit_slices_.data(),
               static_cast<int64_t>(slices.size() * sizeof(float)));
  MR_RETURN_IF_ERROR(device_.synchronize(deadline));
  return model::gather_logits(slices, count, weights_, context_.grid.tp(), deadline);
}

Result<void> PrefillRun::finish(PrefillResult& result, Deadline deadline) {
  clock_.enter(Phase::kLogits);
  std::vector<int64_t> wanted(task_.probe_positions.begin(), task_.probe_positions.end());
  wanted.push_back(partition_.num_tokens() - 1);
  const auto vocab = static_cast<size_t>(weights_.config.vocab_size);
  Result<void> own;  // returned at the end: until then the others wait for this rank's rows
  for (size_t first = 0; first < wanted.size(); first += kLogitRows) {
    const auto count = std::min<size_t>(kLogitRows, wanted.size() - first);
    MR_ASSIGN_OR_RETURN(const auto all, logits(std::span(wanted).subspan(first, count), deadline));
    for (size_t i = 0; i < all.size() / vocab; ++i) {
      const auto row = std::span(all).subspan(i * vocab, vocab);
      if (own.ok()) own = model::check_logits(row, wanted[first + i]);
      if (!own.ok()) break;
      if (first + i + 1 == wanted.size()) {
        result.top_tokens = model::top_tokens(row, std::max(task_.num_top, 1));
      } else {
        finish_probe(first + i, row, result);
      }
    }
  }
  const auto end = clock_.stop();
  MR_RETURN_IF_ERROR(device_.wait_for(end, deadline));
  clock_.settle(end);
  return own;
}

void PrefillRun::finish_probe(size_t probe, std::span<const float> logits,
                              PrefillResult& result) const {
  result.probe_token_ids.push_back(model::best_token(logits));
  if (task_.probe_target_ids.empty()) return;
  result.probe_logprobs.push_back(model::token_logprob(logits, task_.probe_target_ids[probe]));
}

Result<void> PrefillRun::finish_sink() {
  return task_.sink == nullptr ? Result<void>() : task_.sink->finish();
}

}  // namespace millrace::engine
