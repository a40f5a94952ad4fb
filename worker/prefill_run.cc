#include "worker/prefill_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/units.h"
#include "kernels/api/coverage.h"
#include "worker/row_gather.h"

namespace millrace::worker {

using kernels::kPageTokens;
using model::Pattern;

namespace {

bool uses_blocks(Pattern pattern) {
  return pattern == Pattern::kBlockSparse || pattern == Pattern::kAdaptive;
}

// Rows whose logits are computed at a time: bounds [rows, vocabulary] float32, 32 MiB at a
// vocabulary of 128K.
constexpr int64_t kLogitRows = 64;

}  // namespace

PrefillRun::PrefillRun(kernels::Device& device, const model::ModelWeights& weights,
                       const RankGrid& grid, const EngineOptions& options,
                       model::LayerForward& forward, Partition partition, const PrefillTask& task)
    : device_(device),
      weights_(weights),
      grid_(grid),
      options_(options),
      forward_(forward),
      partition_(std::move(partition)),
      task_(task),
      num_rows_(partition_.num_tokens(grid.cp().rank())),
      positions_(partition_.positions(grid.cp().rank())),
      tiles_(partition_.tiles(grid.cp().rank())),
      last_positions_(static_cast<size_t>(std::min(kernels::kLastRows, partition_.num_tokens()))),
      scale_(1.0f / std::sqrt(static_cast<float>(weights.config.head_dim))) {
  std::iota(last_positions_.begin(), last_positions_.end(),
            partition_.num_tokens() - static_cast<int64_t>(last_positions_.size()));
}

Result<std::unique_ptr<PrefillRun>> PrefillRun::create(
    kernels::Device& device, const model::ModelWeights& weights, const RankGrid& grid,
    const EngineOptions& options, model::LayerForward& forward, Partition partition,
    const PrefillTask& task) {
  std::unique_ptr<PrefillRun> run(
      new PrefillRun(device, weights, grid, options, forward, std::move(partition), task));
  MR_RETURN_IF_ERROR(run->allocate());
  return run;
}

Result<void> PrefillRun::allocate() {
  const auto& config = weights_.config;
  const auto& shard = weights_.shard;
  const int64_t row_bytes =
      int64_t{shard.num_query_heads} * config.head_dim * dtype_bytes(weights_.compute_dtype);
  const int64_t hidden_bytes = int64_t{config.hidden_size} * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(hidden_, device_.allocate(num_rows_ * hidden_bytes));
  MR_ASSIGN_OR_RETURN(partial_, device_.allocate(options_.row_tile_tokens * hidden_bytes));
  MR_ASSIGN_OR_RETURN(q_, device_.allocate(num_rows_ * row_bytes));
  MR_ASSIGN_OR_RETURN(attended_, device_.allocate(num_rows_ * row_bytes));
  MR_ASSIGN_OR_RETURN(lse_,
                      device_.allocate(num_rows_ * shard.num_query_heads * int64_t{sizeof(float)}));
  MR_ASSIGN_OR_RETURN(last_q_,
                      device_.allocate(static_cast<int64_t>(last_positions_.size()) * row_bytes));
  MR_ASSIGN_OR_RETURN(auto exchange,
                      KvExchange::create(device_, partition_, grid_.cp(), shard.num_kv_heads,
                                         config.head_dim, weights_.compute_dtype));
  exchange_ = std::make_unique<KvExchange>(std::move(exchange));
  MR_ASSIGN_OR_RETURN(index_,
                      LayerIndex::create(device_, *task_.plan, shard.first_query_head,
                                         shard.num_query_heads, partition_.num_tokens(), tiles_));
  index_builder_ = std::make_unique<IndexBuilder>(device_, grid_.cp(), tiles_, *task_.plan,
                                                  shard.first_query_head);
  const int64_t num_pages = ceil_div(partition_.num_tokens(), kPageTokens);
  page_scores_.resize(static_cast<size_t>(shard.num_kv_heads * num_pages));
  return {};
}

template <typename Body>
Result<void> PrefillRun::for_row_tiles(Body&& body) {
  for (int64_t first = 0; first < num_rows_; first += options_.row_tile_tokens) {
    MR_RETURN_IF_ERROR(body(first, std::min(options_.row_tile_tokens, num_rows_ - first)));
  }
  return {};
}

Result<void> PrefillRun::embed() {
  PhaseTimes::Span span(phases_, Phase::kEmbed);
  std::vector<int32_t> own_tokens;
  own_tokens.reserve(positions_.size());
  for (const int32_t position : positions_) {
    own_tokens.push_back(task_.token_ids[static_cast<size_t>(position)]);
  }
  device_.embed({.token_ids = own_tokens.data(),
                 .num_rows = num_rows_,
                 .table = weights_.embedding,
                 .hidden = hidden_.as<float>()});
  return {};
}

Result<void> PrefillRun::run_layer(int32_t layer, Deadline deadline) {
  {
    PhaseTimes::Span span(phases_, Phase::kQkv);
    project(layer);
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
  }
  {
    PhaseTimes::Span span(phases_, Phase::kExchange);
    MR_RETURN_IF_ERROR(exchange_->gather(deadline));
    MR_RETURN_IF_ERROR(gather_last_queries(deadline));
  }
  {
    PhaseTimes::Span span(phases_, Phase::kEstimate);
    MR_RETURN_IF_ERROR(index_builder_->build(layer,
                                             {.q = q_.data(),
                                              .num_rows = num_rows_,
                                              .num_query_heads = weights_.shard.num_query_heads,
                                              .scale = scale_},
                                             last_rows(), exchange_->slab(), index_.view(),
                                             deadline));
    if (task_.index_tap) task_.index_tap(layer, index_.view());
    count_pairs();
  }
  {
    PhaseTimes::Span span(phases_, Phase::kAttention);
    attend();
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
  }
  {
    PhaseTimes::Span span(phases_, Phase::kMlp);
    MR_RETURN_IF_ERROR(finish_rows(layer, deadline));
  }
  PhaseTimes::Span span(phases_, Phase::kStore);
  return score_pages(layer, deadline);
}

void PrefillRun::project(int32_t layer) {
  const auto& config = weights_.config;
  const int64_t element = dtype_bytes(weights_.compute_dtype);
  const int64_t q_row = int64_t{weights_.shard.num_query_heads} * config.head_dim * element;
  const int64_t kv_row = config.head_dim * element;
  const auto status = for_row_tiles([&](int64_t first, int64_t rows) -> Result<void> {
    forward_.qkv(layer, hidden_.as<float>() + first * config.hidden_size, rows,
                 positions_.data() + first,
                 {.dtype = weights_.compute_dtype,
                  .q = q_.as<std::byte>() + first * q_row,
                  .k = static_cast<std::byte*>(exchange_->local_k()) + first * kv_row,
                  .v = static_cast<std::byte*>(exchange_->local_v()) + first * kv_row,
                  .kv_stride = num_rows_});
    return {};
  });
  MR_CHECK(status.ok(), "projection cannot fail");
}

kernels::LastRows PrefillRun::last_rows() const {
  return {.q = last_q_.data(),
          .num_rows = static_cast<int64_t>(last_positions_.size()),
          .first_position = last_positions_.front(),
          .num_query_heads = weights_.shard.num_query_heads,
          .scale = scale_};
}

Result<void> PrefillRun::gather_last_queries(Deadline deadline) {
  const int64_t row_bytes = int64_t{weights_.shard.num_query_heads} * weights_.config.head_dim *
                            dtype_bytes(weights_.compute_dtype);
  std::vector<std::byte> rows(last_positions_.size() * static_cast<size_t>(row_bytes));
  MR_RETURN_IF_ERROR(gather_rows(partition_, grid_.cp(), last_positions_, row_bytes,
                                 rows_at(q_.data(), row_bytes), rows.data(), deadline));
  device_.copy(last_q_.data(), rows.data(), static_cast<int64_t>(rows.size()));
  return {};
}

void PrefillRun::count_pairs() {
  covered_pairs_ = 0;
  causal_pairs_ = 0;
  const int64_t dense_from = kernels::first_dense_position(partition_.num_tokens());
  kernels::TileCoverage coverage;
  for (int32_t h = 0; h < weights_.shard.num_query_heads; ++h) {
    const auto head = index_.view().head(h);
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const auto& tile = tiles_[t];
      kernels::tile_coverage(head, tile, static_cast<int64_t>(t), tile.position >= dense_from,
                             coverage);
      covered_pairs_ += static_cast<double>(kernels::covered_pairs(coverage, tile));
      causal_pairs_ += static_cast<double>(kernels::causal_pairs(tile));
    }
  }
}

void PrefillRun::attend() {
  device_.attention({.q = q_.data(),
                     .num_rows = num_rows_,
                     .num_query_heads = weights_.shard.num_query_heads,
                     .scale = scale_,
                     .kv = exchange_->slab(),
                     .tiles = tiles_,
                     .index = index_.view(),
                     .out = attended_.data(),
                     .lse = lse_.as<float>()});
}

Result<void> PrefillRun::add_over_tp(int64_t first_row, int64_t num_rows, Deadline deadline) {
  const int64_t count = num_rows * weights_.config.hidden_size;
  MR_RETURN_IF_ERROR(device_.synchronize(deadline));
  MR_RETURN_IF_ERROR(grid_.tp().all_reduce_sum(
      std::span(partial_.as<float>(), static_cast<size_t>(count)), deadline));
  device_.add({.x = hidden_.as<float>() + first_row * weights_.config.hidden_size,
               .y = partial_.as<float>(),
               .count = count});
  return {};
}

Result<void> PrefillRun::finish_rows(int32_t layer, Deadline deadline) {
  const int64_t attended_row = int64_t{weights_.shard.num_query_heads} * weights_.config.head_dim *
                               dtype_bytes(weights_.compute_dtype);
  const bool alone = grid_.tp().size() == 1;
  return for_row_tiles([&](int64_t first, int64_t rows) -> Result<void> {
    float* hidden = hidden_.as<float>() + first * weights_.config.hidden_size;
    float* out = alone ? hidden : partial_.as<float>();
    forward_.attention_output(layer, attended_.as<std::byte>() + first * attended_row, rows, out,
                              /*accumulate=*/alone);
    if (!alone) MR_RETURN_IF_ERROR(add_over_tp(first, rows, deadline));
    forward_.mlp(layer, hidden, rows, out, /*accumulate=*/alone);
    if (!alone) MR_RETURN_IF_ERROR(add_over_tp(first, rows, deadline));
    return device_.synchronize(deadline);
  });
}

bool PrefillRun::owns_last_tile() const {
  return partition_.owner(partition_.num_tokens() - 1) == grid_.cp().rank();
}

Result<void> PrefillRun::score_pages(int32_t layer, Deadline deadline) {
  const auto& shard = weights_.shard;
  const auto num_heads = static_cast<size_t>(shard.num_query_heads);
  const size_t num_last = last_positions_.size();
  const auto num_pages = static_cast<size_t>(ceil_div(partition_.num_tokens(), kPageTokens));

  // The dense statistics of the last rows, row by row from their owners, then head-major.
  std::vector<float> lse_rows(num_last * num_heads);
  const auto read_lse = [&](int64_t local_row, std::byte* row) {
    for (size_t h = 0; h < num_heads; ++h) {
      const float value = lse_.as<float>()[static_cast<int64_t>(h) * num_rows_ + local_row];
      std::memcpy(row + h * sizeof(float), &value, sizeof(float));
    }
  };
  MR_RETURN_IF_ERROR(gather_rows(partition_, grid_.cp(), last_positions_,
                                 static_cast<int64_t>(num_heads * sizeof(float)), read_lse,
                                 lse_rows.data(), deadline));
  std::vector<float> lse(lse_rows.size());
  for (size_t r = 0; r < num_last; ++r) {
    for (size_t h = 0; h < num_heads; ++h) lse[h * num_last + r] = lse_rows[r * num_heads + h];
  }

  // Heads are dealt over the cp ranks; those with block lists go to the owner of the last tile,
  // where their lists are.
  std::vector<int32_t> list_heads, block_heads;
  for (int32_t h = 0; h < shard.num_query_heads; ++h) {
    const Pattern pattern = task_.plan->at(layer, shard.first_query_head + h).pattern;
    if (uses_blocks(pattern)) {
      if (owns_last_tile()) block_heads.push_back(h);
    } else if (h % grid_.cp().size() == grid_.cp().rank()) {
      list_heads.push_back(h);
    }
  }
  std::vector<float> scores(num_heads * num_pages, 0.0f);
  score_heads(layer, list_heads, lse.data(), /*any_tile=*/true, scores);
  score_heads(layer, block_heads, lse.data(), /*any_tile=*/false, scores);
  // Each head's scores are zero but on one rank, so the sum is a gather and exact.
  MR_RETURN_IF_ERROR(grid_.cp().all_reduce_sum(std::span(scores), deadline));

  std::fill(page_scores_.begin(), page_scores_.end(), 0.0f);
  const size_t group = num_heads / static_cast<size_t>(shard.num_kv_heads);
  for (size_t h = 0; h < num_heads; ++h) {
    float* kv_scores = page_scores_.data() + h / group * num_pages;
    for (size_t p = 0; p < num_pages; ++p) {
      kv_scores[p] += scores[h * num_pages + p] / static_cast<float>(group);
    }
  }
  if (task_.sink == nullptr) return {};
  return task_.sink->write_layer({.layer = layer,
                                  .local = exchange_->local(),
                                  .page_scores = page_scores_,
                                  .num_pages = static_cast<int64_t>(num_pages)});
}

void PrefillRun::score_heads(int32_t layer, const std::vector<int32_t>& heads, const float* lse,
                             bool any_tile, std::vector<float>& scores) {
  if (heads.empty()) return;
  const auto num_last = static_cast<int64_t>(last_positions_.size());
  const int64_t num_pages = ceil_div(partition_.num_tokens(), kPageTokens);

  // Recall is taken over the last row tiles: all of them where the lists are the same for all rows,
  // else those this rank has block lists for. The first of them may begin before the last rows do.
  std::vector<kernels::RowTile> recall_tiles;
  std::vector<int64_t> tile_numbers;
  const auto all_tiles = any_tile ? kernels::tile_rows(partition_.num_tokens()) : tiles_;
  for (size_t t = 0; t < all_tiles.size(); ++t) {
    const auto& tile = all_tiles[t];
    if (tile.position < last_positions_.front()) continue;
    recall_tiles.push_back({.local_row = tile.position - last_positions_.front(),
                            .position = tile.position,
                            .num_rows = tile.num_rows});
    tile_numbers.push_back(static_cast<int64_t>(t));
  }

  std::vector<float> head_lse, head_scores(heads.size() * static_cast<size_t>(num_pages));
  for (const int32_t h : heads)
    head_lse.insert(head_lse.end(), lse + h * num_last, lse + (h + 1) * num_last);
  std::vector<float> recall(heads.size());
  device_.page_scores({.last = last_rows(),
                       .kv = exchange_->slab(),
                       .lse = head_lse.data(),
                       .heads = heads,
                       .index = index_.view(),
                       .recall_tiles = recall_tiles,
                       .recall_tile_numbers = tile_numbers,
                       .page_scores = head_scores.data(),
                       .recall = recall.data()});
  for (size_t i = 0; i < heads.size(); ++i) {
    std::copy_n(head_scores.data() + static_cast<int64_t>(i) * num_pages, num_pages,
                scores.data() + heads[i] * num_pages);
    const auto& pattern = task_.plan->at(layer, weights_.shard.first_query_head + heads[i]);
    if (pattern.pattern == Pattern::kDense || recall_tiles.empty()) continue;
    recall_sum_ += recall[i];
    recall_count_ += 1;
  }
}

Result<void> PrefillRun::finish(PrefillResult& result, Deadline deadline) {
  PhaseTimes::Span span(phases_, Phase::kLogits);
  const auto& config = weights_.config;
  std::vector<int64_t> wanted(task_.probe_positions.begin(), task_.probe_positions.end());
  wanted.push_back(partition_.num_tokens() - 1);
  const int64_t row_bytes = int64_t{config.hidden_size} * int64_t{sizeof(float)};
  const auto read_hidden = rows_at(hidden_.data(), row_bytes);

  for (size_t first = 0; first < wanted.size(); first += kLogitRows) {
    const auto count = std::min<size_t>(kLogitRows, wanted.size() - first);
    std::vector<float> rows(count * static_cast<size_t>(config.hidden_size));
    MR_RETURN_IF_ERROR(gather_rows(partition_, grid_.cp(), std::span(wanted).subspan(first, count),
                                   row_bytes, read_hidden, rows.data(), deadline));
    if (grid_.cp().rank() != 0) continue;  // the tensor-parallel row of the root has all it needs
    std::vector<float> slices(count * static_cast<size_t>(weights_.lm_head.rows));
    forward_.logits(rows.data(), static_cast<int64_t>(count), slices.data());
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
    MR_ASSIGN_OR_RETURN(const auto logits, model::gather_logits(slices, static_cast<int64_t>(count),
                                                                weights_, grid_.tp(), deadline));
    const auto vocab = static_cast<size_t>(config.vocab_size);
    for (size_t i = 0; i < count; ++i) {
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      if (first + i + 1 == wanted.size()) {
        result.top_tokens = model::top_tokens(row, std::max(task_.num_top, 1));
      } else {
        result.probe_token_ids.push_back(model::top_tokens(row, 1).front().token_id);
      }
    }
  }
  return {};
}

}  // namespace millrace::worker
