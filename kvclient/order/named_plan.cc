// SPDX-License-Identifier: Apache-2.0
#include "kvclient/order/named_plan.h"

#include <algorithm>
#include <map>

#include "common/check.h"
#include "kvclient/manifest/shard_spans.h"

namespace millrace::kvclient {

NamedPlan::NamedPlan(std::span<const PageName> names, const Manifest& manifest,
                     int64_t pages_per_request) {
  std::map<int32_t, ShardSpans> spans;  // by kv head
  for (const PageName& name : names) {
    const auto of_head = spans.try_emplace(name.kv_head, manifest, name.kv_head).first;
    const ShardSpan* span = of_head->second.find(name.page);
    MR_CHECK(span != nullptr, "kv head {}, page {}: not covered", name.kv_head, name.page);
    auto& runs = work_[lane_of(span->shard, manifest)].runs;
    if (runs.empty() || runs.back().layer != name.layer || runs.back().kv_head != name.kv_head ||
        runs.back().num_pages == pages_per_request) {
      runs.push_back({.layer = name.layer, .kv_head = name.kv_head, .named = {}});
      runs.back().first_page = name.page;
    }
    runs.back().named.push_back(name.page);
    ++runs.back().num_pages;
  }
}

size_t NamedPlan::lane_of(int shard, const Manifest& manifest) {
  const auto known = std::find_if(lanes_.begin(), lanes_.end(),
                                  [shard](const PullLane& lane) { return lane.shard == shard; });
  if (known != lanes_.end()) return static_cast<size_t>(known - lanes_.begin());
  lanes_.push_back({.address = manifest.shards[static_cast<size_t>(shard)].address,
                    .shard = shard,
                    .spans = {}});
  work_.emplace_back();
  return lanes_.size() - 1;
}

std::optional<PullTurn> NamedPlan::next(size_t lane, int64_t) const {
  const Lane& from = work_[lane];
  if (from.next == from.runs.size()) return std::nullopt;
  return PullTurn{.layer = from.runs[from.next].layer};
}

PullJob NamedPlan::take(size_t lane, int64_t) {
  Lane& from = work_[lane];
  return {.run = std::move(from.runs[from.next++]),
          .scores = {},
          .hot = false,
          .lane = static_cast<int>(lane)};
}

void NamedPlan::add_scores(const PullJob&, const std::vector<float>&) {
  MR_CHECK(false, "scores, which nobody asked for");
}

}  // namespace millrace::kvclient
