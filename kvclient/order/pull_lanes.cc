// SPDX-License-Identifier: Apache-2.0
#include "kvclient/order/pull_lanes.h"

#include <algorithm>
#include <map>

#include "common/check.h"
#include "common/units.h"
#include "kvclient/manifest/shard_spans.h"

namespace millrace::kvclient {

std::vector<PullLane> pull_lanes(const PullPart& part, const Manifest& manifest) {
  const int64_t page_tokens = manifest.layout.page_tokens;
  const int64_t end_page = ceil_div(part.first_token + part.num_tokens, page_tokens);
  std::vector<PullLane> lanes;
  std::map<int, size_t> lane_of_shard;
  for (int32_t h = 0; h < part.num_kv_heads; ++h) {
    const int32_t head = part.first_kv_head + h;
    const ShardSpans spans(manifest, head);
    for (int64_t page = part.first_token / page_tokens; page < end_page;) {
      const ShardSpan* span = spans.find(page);
      MR_CHECK(span != nullptr, "kv head {}, page {}: not covered", head, page);
      const auto [known, added] = lane_of_shard.emplace(span->shard, lanes.size());
      if (added) {
        lanes.push_back({.address = manifest.shards[static_cast<size_t>(span->shard)].address,
                         .shard = span->shard,
                         .spans = {}});
      }
      const int64_t end = std::min(span->end_page, end_page);
      lanes[known->second].spans.push_back(
          {.kv_head = head, .first_page = page, .num_pages = end - page});
      page = end;
    }
  }
  return lanes;
}

std::vector<int64_t> pages_of(const Shard& shard, int64_t page_tokens) {
  std::vector<int64_t> pages;
  for (const auto& range : shard.token_ranges) {
    for (int64_t page = range.begin / page_tokens; page < ceil_div(range.end, page_tokens);
         ++page) {
      pages.push_back(page);
    }
  }
  return pages;
}

}  // namespace millrace::kvclient
