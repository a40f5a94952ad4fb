// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group count, gathered on all ranks, and turned into the metrics that rank 0's
// heartbeats carry.
#pragma once

#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "engine/ranks/rank_grid.h"
#include "kvstore/kv_store.h"
#include "protocol/control_messages.pb.h"
#include "worker/control/control_board.h"

namespace millrace::worker {

struct RankStats {
  kvstore::KvStoreStats store;
  int64_t free_prompt_tokens = 0;             // the longest prompt that its store has room for
  PerTier<kvstore::ReadTotals> prefix_loads;  // cached pages that prompts loaded, by where they lay
  comm::TransportStats transport;
  comm::CommStats tp;
  comm::CommStats cp;
  double attention_imbalance = 1;  // of the last prompt, the same on all ranks
  // The next three are of prompts that succeeded. One of the ranks that ran a prompt counts it.
  int64_t cache_queried_tokens = 0;     // of those that read the prefix cache
  int64_t cache_hit_tokens = 0;         // of these, not computed
  int64_t cache_uneconomic_tokens = 0;  // cached, but computed since that was faster
  int64_t num_lost_pages = 0;           // that the rank is going to name (LostPages)
  bool lost_are_all_left = false;       // likewise
};

// Collective. The stats of all ranks, on every rank.
Result<std::vector<RankStats>> gather_stats(comm::Communicator& world, const RankStats& own,
                                            Deadline deadline);

// The longest prompt, in tokens, that all ranks have room for.
int64_t free_prompt_tokens(const std::vector<RankStats>& ranks);

// The value to which all ranks advance their eviction clocks (CachedPages::advance_eviction_clock).
double eviction_clock(const std::vector<RankStats>& ranks);

// Sums over the ranks, as metrics.
std::vector<protocol::Metric> group_metrics(const std::vector<RankStats>& ranks,
                                            const LeaseCounts& leases);

}  // namespace millrace::worker
