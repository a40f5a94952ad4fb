// SPDX-License-Identifier: Apache-2.0
// What a pull received, from which tiers, and over which transports.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/tier.h"

namespace millrace::kvclient {

struct PullStats {
  int64_t pages = 0;
  int64_t bytes = 0;
  PerTier<int64_t> pages_by_tier;
  int64_t corrupt_pages = 0;  // arrived corrupt and were fetched again
  // Pages on the hot list, out of those in `pages`; with kPosition, all of them. hot_pages_total
  // counts only layers whose list is known.
  int64_t hot_pages = 0;
  int64_t hot_pages_total = 0;
  int64_t score_bytes = 0;  // received besides `bytes`
  double seconds = 0;
  std::map<std::string, int64_t> bytes_by_transport;
};

}  // namespace millrace::kvclient
