// SPDX-License-Identifier: Apache-2.0
#include "engine/recall_meter.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::engine {

using kernels::kTileRows;

std::vector<kernels::MeasuredRow> measured_rows(const std::vector<kernels::RowTile>& tiles,
                                                int64_t num_tokens) {
  // Pages that every tile keeps: the first, the diagonal and the one before it.
  constexpr int64_t kKeptPages = 3;
  // Odd, so that the measured rows of 64 consecutive measured tiles all differ, and include both
  // sampled and other rows.
  constexpr int64_t kRowStep = 37;
  const int64_t step =
      std::max<int64_t>(ceil_div(ceil_div(num_tokens, kTileRows), kMaxMeasuredRows), 1);
  std::vector<kernels::MeasuredRow> rows;
  for (const auto& tile : tiles) {
    const int64_t number = tile.position / kTileRows;
    if (number % step != 0 || tile.position >= kernels::first_dense_position(num_tokens) ||
        kernels::causal_pages(tile) <= kKeptPages) {
      continue;
    }
    const int64_t row = number / step * kRowStep % kTileRows;
    rows.push_back({.local_row = tile.local_row + row, .position = tile.position + row});
  }
  return rows;
}

Result<RecallMeter> RecallMeter::create(kernels::Device& device,
                                        const std::vector<kernels::RowTile>& tiles,
                                        const std::vector<kernels::RowTile>& last_tiles,
                                        int64_t num_tokens, const plan::HeadPlan& plan,
                                        const model::ShardShape& shard, bool by_head) {
  RecallMeter meter(device, plan, shard);
  if (by_head) meter.by_head_ = HeadRecalls(plan.num_layers(), plan.num_heads());
  meter.rows_ = measured_rows(tiles, num_tokens);
  meter.last_rows_ = measured_rows(last_tiles, num_tokens);
  const int64_t bytes = int64_t{shard.num_query_heads} * meter.num_rows() * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(meter.recall_, device.allocate(bytes));
  for (auto& place : meter.on_host_) {
    MR_ASSIGN_OR_RETURN(place, device.allocate_host(bytes));
  }
  return meter;
}

std::vector<int32_t> RecallMeter::sparse_heads(int32_t layer) const {
  std::vector<int32_t> heads;
  for (int32_t h = 0; h < shard_->num_query_heads; ++h) {
    const auto& head = plan_->at(layer, shard_->first_query_head + h);
    if (head.pattern != plan::Pattern::kDense) heads.push_back(h);
  }
  return heads;
}

void RecallMeter::enqueue(int32_t layer, const LocalQueries& queries, const float* lse,
                          const kernels::KvSlab& kv) {
  const auto heads = sparse_heads(layer);
  const auto& rows = this->rows(layer);
  if (heads.empty() || rows.empty()) return;
  device_->row_recall({.q = queries.q,
                       .num_query_heads = queries.num_query_heads,
                       .scale = queries.scale,
                       .kv = kv,
                       .rows = rows,
                       .heads = heads,
                       .lse = lse,
                       .num_rows = queries.num_rows,
                       .recall = recall_.as<float>()});
  device_->copy(on_host(layer).as<float>(), recall_.data(),
                std::ssize(heads) * std::ssize(rows) * int64_t{sizeof(float)});
}

void RecallMeter::collect(int32_t layer) {
  const float* share = on_host(layer).as<float>();
  for (const int32_t head : sparse_heads(layer)) {
    for (size_t row = 0; row < rows(layer).size(); ++row, ++share) {
      stats_.add(double{*share});
      if (!by_head_.empty()) by_head_.at(layer, shard_->first_query_head + head).add(*share);
    }
  }
}

void RecallMeter::count_pairs(int32_t layer, int32_t head, double covered, double causal) {
  if (by_head_.empty()) return;
  HeadRecall& of = by_head_.at(layer, shard_->first_query_head + head);
  of.covered_pairs += covered;
  of.causal_pairs += causal;
}

}  // namespace millrace::engine
