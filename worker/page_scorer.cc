#include "worker/page_scorer.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::worker {

using kernels::kPageTokens;
using model::Pattern;

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Of heads without block lists, whose tiles may be another rank's: their numbers mean nothing here.
kernels::IndexView without_blocks(kernels::IndexView index) {
  index.shape.num_tiles = 0;
  return index;
}

}  // namespace

Result<PageScorer> PageScorer::create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                      const Partition& partition,
                                      const std::vector<kernels::RowTile>& tiles,
                                      const model::HeadPlan& plan, const model::ShardShape& shard) {
  PageScorer scorer(device, cp, partition, plan, shard);
  const int64_t num_tokens = partition.num_tokens();
  const int64_t num_heads = shard.num_query_heads;
  scorer.num_pages_ = ceil_div(num_tokens, kPageTokens);
  scorer.find_recall_tiles(kernels::tile_rows(num_tokens), scorer.with_lists_);
  scorer.find_recall_tiles(tiles, scorer.with_blocks_);
  scorer.page_scores_.resize(static_cast<size_t>(shard.num_kv_heads * scorer.num_pages_));

  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int rank = 0; rank < cp.size(); ++rank) {
      const auto dealt = scorer.deal_heads(layer, rank);
      scorer.most_heads_ = std::max<int64_t>(
          scorer.most_heads_, std::ssize(dealt.with_lists) + std::ssize(dealt.with_blocks));
    }
  }
  const int64_t lse_bytes = num_heads * scorer.num_last_ * kFloatBytes;
  const int64_t scores_bytes = scorer.most_heads_ * scorer.num_pages_ * kFloatBytes;
  MR_ASSIGN_OR_RETURN(scorer.head_lse_, device.allocate(lse_bytes));
  MR_ASSIGN_OR_RETURN(scorer.scores_, device.allocate(cp.size() * scores_bytes));
  MR_ASSIGN_OR_RETURN(scorer.recall_, device.allocate(num_heads * kFloatBytes));
  for (OnHost& place : scorer.on_host_) {
    MR_ASSIGN_OR_RETURN(place.scores, device.allocate_host(cp.size() * scores_bytes));
    MR_ASSIGN_OR_RETURN(place.recall, device.allocate_host(num_heads * kFloatBytes));
  }
  return scorer;
}

// Recall is taken over the last row tiles. The first of them may begin before the last rows do.
void PageScorer::find_recall_tiles(const std::vector<kernels::RowTile>& tiles,
                                   RecallRows& set) const {
  const int64_t first = partition_->num_tokens() - num_last_;
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
PageScorer::Dealt PageScorer::deal_heads(int32_t layer, int rank) const {
  Dealt dealt;
  const bool owns_last_tile = partition_->owner(partition_->num_tokens() - 1) == rank;
  for (int32_t h = 0; h < shard_->num_query_heads; ++h) {
    if (uses_blocks(pattern(layer, h))) {
      if (owns_last_tile) dealt.with_blocks.push_back(h);
    } else if (h % cp_->size() == rank) {
      dealt.with_lists.push_back(h);
    }
  }
  return dealt;
}

Result<void> PageScorer::enqueue(int32_t layer, const LastLse& lse, const kernels::LastRows& last,
                                 const kernels::KvSlab& kv, const kernels::IndexView& index,
                                 Deadline deadline) {
  const auto dealt = deal_heads(layer, cp_->rank());
  score(dealt.with_lists, with_lists_, 0, lse, last, kv, without_blocks(index));
  const int64_t num_lists = std::ssize(dealt.with_lists);
  score(dealt.with_blocks, with_blocks_, num_lists, lse, last, kv, index);
  const int64_t num_own = num_lists + std::ssize(dealt.with_blocks);
  device_->copy(on_host(layer).recall.as<float>(), recall_.data(), num_own * kFloatBytes);
  if (cp_->size() == 1) return {};
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather("page scores", scores_.data(),
                                     most_heads_ * num_pages_ * kFloatBytes, deadline));
  scores_arrived_ = cp_->mark();
  return {};
}

void PageScorer::fetch(int32_t layer) {
  if (cp_->size() > 1) cp_->join(scores_arrived_);
  auto& scores = on_host(layer).scores;
  device_->copy(scores.as<float>(), scores_.data(), scores.bytes());
}

void PageScorer::score(const std::vector<int32_t>& heads, const RecallRows& set, int64_t first,
                       const LastLse& lse, const kernels::LastRows& last, const kernels::KvSlab& kv,
                       const kernels::IndexView& index) {
  if (heads.empty()) return;
  float* head_lse = head_lse_.as<float>() + first * num_last_;
  for (size_t i = 0; i < heads.size();) {
    // Neighbouring heads in one copy; with one rank and one pattern that is all of them.
    size_t end = i + 1;
    while (end < heads.size() && heads[end] == heads[end - 1] + 1) ++end;
    device_->copy_rows({.destination = head_lse + static_cast<int64_t>(i) * num_last_,
                        .destination_stride_bytes = num_last_ * kFloatBytes,
                        .source = lse.first + heads[i] * lse.head_stride,
                        .source_stride_bytes = lse.head_stride * kFloatBytes,
                        .row_bytes = num_last_ * kFloatBytes,
                        .num_rows = static_cast<int64_t>(end - i)});
    i = end;
  }
  device_->page_scores(
      {.last = last,
       .kv = kv,
       .lse = head_lse,
       .heads = heads,
       .index = index,
       .recall_tiles = set.recall_tiles,
       .recall_tile_numbers = set.tile_numbers,
       .page_scores = scores_.as<float>() + (cp_->rank() * most_heads_ + first) * num_pages_,
       .recall = recall_.as<float>() + first});
}

void PageScorer::add_recall(int32_t layer) {
  const float* recall = on_host(layer).recall.as<float>();
  const auto dealt = deal_heads(layer, cp_->rank());
  const auto add = [&](const std::vector<int32_t>& heads, const RecallRows& set) {
    for (const int32_t h : heads) {
      const float share = *recall++;
      if (pattern(layer, h) == Pattern::kDense || set.recall_tiles.empty()) continue;
      recall_sum_ += share;
      recall_count_ += 1;
    }
  };
  add(dealt.with_lists, with_lists_);
  add(dealt.with_blocks, with_blocks_);
}

void PageScorer::collect(int32_t layer) {
  add_recall(layer);
  std::fill(page_scores_.begin(), page_scores_.end(), 0.0f);
  for (int rank = 0; rank < cp_->size(); ++rank) {
    const float* scores = on_host(layer).scores.as<float>() + rank * most_heads_ * num_pages_;
    const auto dealt = deal_heads(layer, rank);
    for (const auto* heads : {&dealt.with_lists, &dealt.with_blocks}) {
      for (const int32_t h : *heads) {
        add_scores(h, scores);
        scores += num_pages_;
      }
    }
  }
}

void PageScorer::add_scores(int32_t head, const float* scores) {
  const int32_t group = shard_->num_query_heads / shard_->num_kv_heads;
  float* sums = page_scores_.data() + head / group * num_pages_;
  for (int64_t p = 0; p < num_pages_; ++p) sums[p] += scores[p] / static_cast<float>(group);
}

}  // namespace millrace::worker
