// SPDX-License-Identifier: Apache-2.0
// Which shard of a manifest serves each page of one kv head: runs of pages in order, found by
// binary search. A prompt of millions of tokens has thousands of stripes.
#pragma once

#include <cstdint>
#include <vector>

#include "kvclient/manifest/manifest.h"

namespace millrace::kvclient {

// Pages [first_page, end_page), all served by manifest.shards[shard].
struct ShardSpan {
  int shard = 0;
  int64_t first_page = 0;
  int64_t end_page = 0;

  bool operator==(const ShardSpan&) const = default;
};

class ShardSpans {
 public:
  // If two shards hold a page, the one whose range begins first serves it. The manifest must have
  // passed check_manifest.
  ShardSpans(const Manifest& manifest, int32_t kv_head);

  // The span that holds `page`, or null.
  const ShardSpan* find(int64_t page) const;
  const std::vector<ShardSpan>& spans() const { return spans_; }

 private:
  void append(ShardSpan span);

  std::vector<ShardSpan> spans_;  // disjoint, ascending
};

}  // namespace millrace::kvclient
