// What the ranks of a group count, brought to rank 0 and put into the samples that heartbeats
// carry.
#pragma once

#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "kvstore/kv_store.h"
#include "protocol/control_messages.pb.h"
#include "worker/control/lease_counts.h"
#include "worker/ranks/rank_grid.h"

namespace millrace::worker {

struct RankStats {
  kvstore::KvStoreStats store;
  int64_t free_prompt_tokens = 0;  // the longest prompt that its store has room for
  PerTier<kvstore::ReadTotals>
      prefix_loads;  // cached pages as prompts took them, by where they lay
  comm::TransportStats transport;
  comm::CommStats tp;
  comm::CommStats cp;
  double attention_imbalance = 1;  // of the last prompt, the same on all ranks
  // Of prompts that came to a good end, each counted by one of the ranks that ran it:
  int64_t cache_queried_tokens = 0;     // of those that read the prefix cache
  int64_t cache_hit_tokens = 0;         // of these, not computed
  int64_t cache_uneconomic_tokens = 0;  // cached, and computed since that was faster
  int64_t num_gone_pages = 0;           // that the rank goes on to name (CacheEvents)
  int64_t num_gone_prefixes = 0;        // the same, of its lane's (LaneRuns)
};

// Collective: the stats of all ranks, on every rank.
Result<std::vector<RankStats>> gather_stats(comm::Communicator& world, const RankStats& own,
                                            Deadline deadline);

// The longest prompt that all of them have room for.
int64_t free_prompt_tokens(const std::vector<RankStats>& ranks);

// From where the uses of cached pages count on all ranks from now on (KvStore::advance_eviction_clock).
double eviction_clock(const std::vector<RankStats>& ranks);

// Sums over the ranks, as metrics.
std::vector<protocol::Metric> group_metrics(const std::vector<RankStats>& ranks,
                                            const LeaseCounts& leases);

}  // namespace millrace::worker
