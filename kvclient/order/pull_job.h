// SPDX-License-Identifier: Apache-2.0
// One request of a pull to one rank, and what it brought.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/tier.h"
#include "kvclient/order/page_run.h"

namespace millrace::kvclient {

// Either the pages of `run`, or the scores that the rank has of the kv heads in `scores`.
struct PullJob {
  PageRun run;
  ScoreBlock scores;
  bool hot = false;  // its pages are on the hot list
  int lane = 0;      // index in the task's lanes

  bool is_for_scores() const { return scores.num_layers > 0; }
};

struct PullOutcome {
  PerTier<int64_t> pages_by_tier;
  std::map<std::string, int64_t> bytes_by_transport;  // including pages that arrived corrupt
  int64_t corrupt_pages = 0;
  std::vector<float> scores;  // [layers, kv heads, pages of the rank]

  void add_bytes(std::string_view transport, int64_t bytes) {
    bytes_by_transport[std::string(transport)] += bytes;
  }
};

}  // namespace millrace::kvclient
