// SPDX-License-Identifier: Apache-2.0
// What one request asks a rank for, and what the rank says of each page. Heads count in the model.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/tier.h"

namespace millrace::kvclient {

struct PageName {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int64_t page = 0;

  auto operator<=>(const PageName&) const = default;
};

// Pages of one layer and kv head, all on one rank.
struct PageRun {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int64_t first_page = 0;
  int64_t num_pages = 0;
  std::vector<int64_t> named;  // num_pages of them, ascending; empty: consecutive from first_page

  int64_t page(int64_t i) const {
    return named.empty() ? first_page + i : named[static_cast<size_t>(i)];
  }
};

// What a rank says of one page.
struct PulledPage {
  uint64_t checksum = 0;
  float score = 0;
  Tier tier = Tier::kDevice;
};

// Scores of all pages that the rank holds.
struct ScoreBlock {
  int32_t first_layer = 0;
  int32_t num_layers = 0;
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  int64_t num_pages = 0;  // of a layer and kv head on the rank

  int64_t num_scores() const { return int64_t{num_layers} * num_kv_heads * num_pages; }
};

}  // namespace millrace::kvclient
