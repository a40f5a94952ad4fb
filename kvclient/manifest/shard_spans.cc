// SPDX-License-Identifier: Apache-2.0
#include "kvclient/manifest/shard_spans.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::kvclient {

ShardSpans::ShardSpans(const Manifest& manifest, int32_t kv_head) {
  const int64_t page_tokens = manifest.layout.page_tokens;
  std::vector<ShardSpan> held;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const auto& shard = manifest.shards[i];
    if (kv_head < shard.first_kv_head || kv_head - shard.first_kv_head >= shard.num_kv_heads) {
      continue;
    }
    for (const auto& range : shard.token_ranges) {
      held.push_back({.shard = static_cast<int>(i),
                      .first_page = range.begin / page_tokens,
                      .end_page = ceil_div(range.end, page_tokens)});
    }
  }
  std::stable_sort(held.begin(), held.end(), [](const ShardSpan& a, const ShardSpan& b) {
    return a.first_page < b.first_page;
  });
  for (const auto& span : held) append(span);
}

// Spans come ordered by first page; pages that an earlier span serves are cut off.
void ShardSpans::append(ShardSpan span) {
  if (!spans_.empty()) {
    ShardSpan& last = spans_.back();
    span.first_page = std::max(span.first_page, last.end_page);
    if (span.first_page >= span.end_page) return;
    if (last.shard == span.shard && last.end_page == span.first_page) {
      last.end_page = span.end_page;
      return;
    }
  }
  spans_.push_back(span);
}

const ShardSpan* ShardSpans::find(int64_t page) const {
  const auto after = std::upper_bound(
      spans_.begin(), spans_.end(), page,
      [](int64_t wanted, const ShardSpan& span) { return wanted < span.first_page; });
  if (after == spans_.begin() || page >= std::prev(after)->end_page) return nullptr;
  return &*std::prev(after);
}

}  // namespace millrace::kvclient
