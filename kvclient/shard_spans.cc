#include "kvclient/shard_spans.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::decode {

ShardSpans::ShardSpans(const protocol::Manifest& manifest, int32_t kv_head) {
  const auto head = static_cast<uint32_t>(kv_head);
  const int64_t page_tokens = manifest.layout().page_tokens();
  std::vector<ShardSpan> held;
  for (int i = 0; i < manifest.shards_size(); ++i) {
    const auto& shard = manifest.shards(i);
    if (head < shard.first_kv_head() || head - shard.first_kv_head() >= shard.num_kv_heads()) {
      continue;
    }
    for (const auto& range : shard.token_ranges()) {
      held.push_back({.shard = i,
                      .first_page = static_cast<int64_t>(range.begin()) / page_tokens,
                      .end_page = ceil_div(static_cast<int64_t>(range.end()), page_tokens)});
    }
  }
  std::stable_sort(held.begin(), held.end(), [](const ShardSpan& a, const ShardSpan& b) {
    return a.first_page < b.first_page;
  });
  for (const auto& span : held) append(span);
}

// Spans come by first page; what an earlier one serves is cut off.
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

}  // namespace millrace::decode
