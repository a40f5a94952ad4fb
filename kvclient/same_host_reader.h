// SPDX-License-Identifier: Apache-2.0
// Copies pages out of the memory of ranks on this host, for one thread of a client. A page is
// copied to a buffer that stays in the cache, checked there, and written from there to where it
// belongs, so it does no harm if the rank changes its memory meanwhile. Staging memory serves as
// such a buffer itself.
#pragma once

#include <span>
#include <vector>

#include "kvclient/page_decoder.h"
#include "kvclient/page_pieces.h"
#include "kvclient/pull_queue.h"
#include "kvclient/ranks/placed_run.h"
#include "kvclient/ranks/same_host_ranks.h"

namespace millrace::kvclient {

class SameHostReader {
 public:
  // Fetches the pages that it can from the rank's pools, and returns the others, which the
  // transport must fetch. `pools`: null if there are none.
  std::vector<PageRun> read(const PlacedRun& placed, const SameHostRanks::Pools* pools,
                            const PagePieces& places, const PageDecoder& decoder,
                            PullOutcome& outcome);

 private:
  static bool copy(const PlacedPage& page, const SameHostRanks::Pools& pools,
                   std::span<std::byte> to);

  std::vector<std::byte> page_, decoded_;
  Pieces pieces_;
};

}  // namespace millrace::kvclient
