// SPDX-License-Identifier: Apache-2.0
#include "engine/page_scorer.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::engine {

using kernels::kPageTokens;

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

Result<PageScorer> PageScorer::create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                      int64_t num_tokens, const model::ShardShape& shard) {
  PageScorer scorer(device, cp, shard);
  scorer.num_last_ = std::min(kernels::kLastRows, num_tokens);
  scorer.num_pages_ = ceil_div(num_tokens, kPageTokens);
  scorer.page_scores_.resize(static_cast<size_t>(shard.num_kv_heads * scorer.num_pages_));
  scorer.max_heads_ = ceil_div(int64_t{shard.num_query_heads}, int64_t{cp.size()});
  const int64_t scores_bytes = scorer.max_heads_ * scorer.num_pages_ * kFloatBytes;
  MR_ASSIGN_OR_RETURN(scorer.head_lse_,
                      device.allocate(scorer.max_heads_ * scorer.num_last_ * kFloatBytes));
  MR_ASSIGN_OR_RETURN(scorer.scores_, device.allocate(cp.size() * scores_bytes));
  for (auto& place : scorer.on_host_) {
    MR_ASSIGN_OR_RETURN(place, device.allocate_host(cp.size() * scores_bytes));
  }
  return scorer;
}

std::vector<int32_t> PageScorer::heads_of(int rank) const {
  std::vector<int32_t> heads;
  for (int32_t h = rank; h < shard_->num_query_heads; h += cp_->size()) heads.push_back(h);
  return heads;
}

Result<void> PageScorer::enqueue(const LastLse& lse, const kernels::LastRows& last,
                                 const kernels::KvSlab& kv, int64_t window, Deadline deadline) {
  const auto heads = heads_of(cp_->rank());
  copy_lse(heads, lse);
  device_->page_scores(
      {.last = last,
       .kv = kv,
       .lse = head_lse_.as<float>(),
       .window = window,
       .heads = heads,
       .page_scores = scores_.as<float>() + cp_->rank() * max_heads_ * num_pages_});
  if (cp_->size() == 1) return {};
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather("page scores", scores_.data(),
                                     max_heads_ * num_pages_ * kFloatBytes, deadline));
  scores_arrived_ = cp_->mark();
  arriving_ = true;
  return {};
}

void PageScorer::copy_lse(const std::vector<int32_t>& heads, const LastLse& lse) {
  if (heads.empty()) return;
  device_->copy_rows({.destination = head_lse_.data(),
                      .destination_stride_bytes = num_last_ * kFloatBytes,
                      .source = lse.first + heads.front() * lse.head_stride,
                      .source_stride_bytes = cp_->size() * lse.head_stride * kFloatBytes,
                      .row_bytes = num_last_ * kFloatBytes,
                      .num_rows = std::ssize(heads)});
}

void PageScorer::settle() {
  if (arriving_) cp_->join(scores_arrived_);
  arriving_ = false;
}

void PageScorer::fetch(int32_t layer) {
  settle();
  auto& scores = on_host(layer);
  device_->copy(scores.as<float>(), scores_.data(), scores.bytes());
}

void PageScorer::collect(int32_t layer) {
  std::fill(page_scores_.begin(), page_scores_.end(), 0.0f);
  // In the order of the heads, so that the sums do not depend on which ranks computed the scores.
  const int32_t size = cp_->size();
  for (int32_t h = 0; h < shard_->num_query_heads; ++h) {
    const int64_t place = (h % size) * max_heads_ + h / size;
    add_scores(h, on_host(layer).as<float>() + place * num_pages_);
  }
}

void PageScorer::add_scores(int32_t head, const float* scores) {
  const int32_t group = shard_->num_query_heads / shard_->num_kv_heads;
  float* sums = page_scores_.data() + head / group * num_pages_;
  for (int64_t p = 0; p < num_pages_; ++p) sums[p] += scores[p] / static_cast<float>(group);
}

}  // namespace millrace::engine
