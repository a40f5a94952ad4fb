#include "worker/page_scorer.h"

#include <algorithm>
#include <numeric>

#include "common/units.h"
#include "worker/row_gather.h"

namespace millrace::worker {

using kernels::kPageTokens;
using model::Pattern;

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

bool uses_blocks(Pattern pattern) {
  return pattern == Pattern::kBlockSparse || pattern == Pattern::kAdaptive;
}

}  // namespace

Result<PageScorer> PageScorer::create(kernels::Device& device, comm::Communicator& cp,
                                      const Partition& partition,
                                      const std::vector<kernels::RowTile>& tiles,
                                      const model::HeadPlan& plan, const model::ShardShape& shard) {
  PageScorer scorer(device, cp, partition, plan, shard);
  const int64_t num_tokens = partition.num_tokens();
  const int64_t num_heads = shard.num_query_heads;
  scorer.last_positions_.resize(static_cast<size_t>(std::min(kernels::kLastRows, num_tokens)));
  std::iota(scorer.last_positions_.begin(), scorer.last_positions_.end(),
            num_tokens - scorer.num_last());
  scorer.num_pages_ = ceil_div(num_tokens, kPageTokens);
  scorer.find_recall_tiles(kernels::tile_rows(num_tokens), scorer.with_lists_);
  scorer.find_recall_tiles(tiles, scorer.with_blocks_);
  scorer.page_scores_.resize(static_cast<size_t>(shard.num_kv_heads * scorer.num_pages_));

  const int64_t lse_bytes = num_heads * scorer.num_last() * kFloatBytes;
  const int64_t scores_bytes = num_heads * scorer.num_pages_ * kFloatBytes;
  MR_ASSIGN_OR_RETURN(scorer.lse_, device.allocate(lse_bytes));
  MR_ASSIGN_OR_RETURN(scorer.head_lse_, device.allocate(lse_bytes));
  MR_ASSIGN_OR_RETURN(scorer.scores_, device.allocate(scores_bytes));
  MR_ASSIGN_OR_RETURN(scorer.recall_, device.allocate(num_heads * kFloatBytes));
  MR_ASSIGN_OR_RETURN(scorer.host_scores_, device.allocate_host(scores_bytes));
  MR_ASSIGN_OR_RETURN(scorer.host_recall_, device.allocate_host(num_heads * kFloatBytes));
  return scorer;
}

// Recall is taken over the last row tiles. The first of them may begin before the last rows do.
void PageScorer::find_recall_tiles(const std::vector<kernels::RowTile>& tiles, HeadSet& set) const {
  const int64_t first = last_positions_.front();
  for (size_t t = 0; t < tiles.size(); ++t) {
    const auto& tile = tiles[t];
    if (tile.position < first) continue;
    set.recall_tiles.push_back(
        {.local_row = tile.position - first, .position = tile.position, .num_rows = tile.num_rows});
    set.tile_numbers.push_back(static_cast<int64_t>(t));
  }
}

// Heads are dealt over the cp ranks; those with block lists go to the owner of the last tile, where
// their lists are.
void PageScorer::deal_heads(int32_t layer) {
  with_lists_.heads.clear();
  with_blocks_.heads.clear();
  const bool owns_last_tile = partition_->owner(partition_->num_tokens() - 1) == cp_->rank();
  for (int32_t h = 0; h < shard_->num_query_heads; ++h) {
    if (uses_blocks(pattern(layer, h))) {
      if (owns_last_tile) with_blocks_.heads.push_back(h);
    } else if (h % cp_->size() == cp_->rank()) {
      with_lists_.heads.push_back(h);
    }
  }
}

Result<void> PageScorer::gather_lse(const float* lse, Deadline deadline) {
  const int64_t num_heads = shard_->num_query_heads;
  const int64_t num_rows = partition_->num_tokens(cp_->rank());
  if (cp_->size() == 1) {
    device_->copy_rows({.destination = lse_.data(),
                        .destination_stride_bytes = num_last() * kFloatBytes,
                        .source = lse + num_rows - num_last(),
                        .source_stride_bytes = num_rows * kFloatBytes,
                        .row_bytes = num_last() * kFloatBytes,
                        .num_rows = num_heads});
    return {};
  }
  // Row by row from their owners, then head-major.
  const int64_t row_bytes = num_heads * kFloatBytes;
  const auto copy_row = [&](int64_t local_row, std::byte* row) {
    device_->copy_rows({.destination = row,
                        .destination_stride_bytes = kFloatBytes,
                        .source = lse + local_row,
                        .source_stride_bytes = num_rows * kFloatBytes,
                        .row_bytes = kFloatBytes,
                        .num_rows = num_heads});
  };
  std::vector<float> rows(static_cast<size_t>(num_last() * num_heads));
  MR_RETURN_IF_ERROR(gather_rows(*device_, *partition_, *cp_, last_positions_, row_bytes, copy_row,
                                 rows.data(), deadline));
  std::vector<float> by_head(rows.size());
  for (int64_t r = 0; r < num_last(); ++r) {
    for (int64_t h = 0; h < num_heads; ++h) {
      by_head[static_cast<size_t>(h * num_last() + r)] =
          rows[static_cast<size_t>(r * num_heads + h)];
    }
  }
  device_->copy(lse_.data(), by_head.data(), lse_.bytes());
  return device_->synchronize(deadline);
}

Result<void> PageScorer::enqueue(int32_t layer, const float* lse, const kernels::LastRows& last,
                                 const kernels::KvSlab& kv, const kernels::IndexView& index,
                                 Deadline deadline) {
  deal_heads(layer);
  MR_RETURN_IF_ERROR(gather_lse(lse, deadline));
  score(with_lists_, 0, last, kv, index);
  const auto num_lists = static_cast<int64_t>(with_lists_.heads.size());
  score(with_blocks_, num_lists, last, kv, index);
  const int64_t num_own = num_lists + static_cast<int64_t>(with_blocks_.heads.size());
  device_->copy(host_scores_.as<float>(), scores_.data(), num_own * num_pages_ * kFloatBytes);
  device_->copy(host_recall_.as<float>(), recall_.data(), num_own * kFloatBytes);
  return {};
}

void PageScorer::score(const HeadSet& set, int64_t first, const kernels::LastRows& last,
                       const kernels::KvSlab& kv, const kernels::IndexView& index) {
  if (set.heads.empty()) return;
  float* head_lse = head_lse_.as<float>() + first * num_last();
  for (size_t i = 0; i < set.heads.size();) {
    // Neighbouring heads in one copy; with one rank and one pattern that is all of them.
    size_t end = i + 1;
    while (end < set.heads.size() && set.heads[end] == set.heads[end - 1] + 1) ++end;
    device_->copy(head_lse + static_cast<int64_t>(i) * num_last(),
                  lse_.as<float>() + set.heads[i] * num_last(),
                  static_cast<int64_t>(end - i) * num_last() * kFloatBytes);
    i = end;
  }
  device_->page_scores({.last = last,
                        .kv = kv,
                        .lse = head_lse,
                        .heads = set.heads,
                        .index = index,
                        .recall_tiles = set.recall_tiles,
                        .recall_tile_numbers = set.tile_numbers,
                        .page_scores = scores_.as<float>() + first * num_pages_,
                        .recall = recall_.as<float>() + first});
}

Result<void> PageScorer::collect(int32_t layer, Deadline deadline) {
  const auto num_heads = static_cast<size_t>(shard_->num_query_heads);
  const auto num_pages = static_cast<size_t>(num_pages_);
  std::vector<float> scores(num_heads * num_pages, 0.0f);
  size_t own = 0;
  for (const HeadSet* set : {&with_lists_, &with_blocks_}) {
    for (const int32_t h : set->heads) {
      std::copy_n(host_scores_.as<float>() + own * num_pages, num_pages,
                  scores.data() + static_cast<size_t>(h) * num_pages);
      const float recall = host_recall_.as<float>()[own++];
      if (pattern(layer, h) == Pattern::kDense || set->recall_tiles.empty()) continue;
      recall_sum_ += recall;
      recall_count_ += 1;
    }
  }
  // Each head's scores are zero but on one rank, so the sum is a gather and exact.
  MR_RETURN_IF_ERROR(cp_->all_reduce_sum(std::span(scores), deadline));

  std::fill(page_scores_.begin(), page_scores_.end(), 0.0f);
  const size_t group = num_heads / static_cast<size_t>(shard_->num_kv_heads);
  for (size_t h = 0; h < num_heads; ++h) {
    float* kv_scores = page_scores_.data() + h / group * num_pages;
    for (size_t p = 0; p < num_pages; ++p) {
      kv_scores[p] += scores[h * num_pages + p] / static_cast<float>(group);
    }
  }
  return {};
}

}  // namespace millrace::worker
