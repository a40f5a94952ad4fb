// SPDX-License-Identifier: Apache-2.0
#include "worker/peers/prefix_scores.h"

namespace millrace::worker {

Result<void> PrefixScoreSink::stage_layer(int32_t layer, const engine::LocalKv& local) {
  return inner_ == nullptr ? Result<void>() : inner_->stage_layer(layer, local);
}

Result<void> PrefixScoreSink::write_layer(const engine::LayerKv& kv) {
  for (int32_t head = 0; head < kv.local.num_kv_heads; ++head) {
    const auto of_head = kv.page_scores.subspan(static_cast<size_t>(head * kv.num_pages),
                                                static_cast<size_t>(prefix_pages_));
    scores_.insert(scores_.end(), of_head.begin(), of_head.end());
  }
  return inner_ == nullptr ? Result<void>() : inner_->write_layer(kv);
}

Result<void> PrefixScoreSink::finish() {
  return inner_ == nullptr ? Result<void>() : inner_->finish();
}

Result<void> set_prefix_scores(kvstore::RequestWriter& store, const std::string& request_id,
                               const engine::PromptPrefix& prefix, int rank,
                               std::span<const float> scores) {
  const auto& geometry = store.geometry();
  const int64_t num_rows = int64_t{geometry.num_layers} * geometry.num_kv_heads;
  if (std::ssize(scores) != num_rows * prefix.num_pages()) {
    return error(Errc::kInternal, "request '{}': {} scores of {} layers, {} kv heads and {} pages",
                 request_id, scores.size(), geometry.num_layers, geometry.num_kv_heads,
                 prefix.num_pages());
  }
  const auto pages = prefix.pages(rank);
  std::vector<float> own;
  own.reserve(static_cast<size_t>(num_rows) * pages.size());
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* const of_row = scores.data() + row * prefix.num_pages();
    for (const int64_t page : pages) own.push_back(of_row[page]);
  }
  return store.set_prefix_scores(request_id, own);
}

}  // namespace millrace::worker
