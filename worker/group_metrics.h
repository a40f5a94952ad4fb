// What the ranks of a group count, brought to rank 0 and put into the samples that heartbeats
// carry.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "kvstore/kv_store.h"
#include "protocol/control_messages.pb.h"
#include "worker/rank_grid.h"

namespace millrace::worker {

struct RankStats {
  kvstore::KvStoreStats store;
  comm::TransportStats transport;
  comm::CommStats tp;
  comm::CommStats cp;
  double attention_imbalance = 1;  // of the last prompt, the same on all ranks
};

// Collective: the stats of all ranks, on every rank.
Result<std::vector<RankStats>> gather_stats(comm::Communicator& world, const RankStats& own,
                                            Deadline deadline);

// Sums over the ranks, as metrics.
std::vector<protocol::Metric> group_metrics(const std::vector<RankStats>& ranks);

// The latest samples: written by the engine's thread, read by the heartbeat's.
class MetricsBoard {
 public:
  void post(std::vector<protocol::Metric> metrics);
  std::vector<protocol::Metric> read() const;

 private:
  mutable std::mutex mutex_;
  std::vector<protocol::Metric> metrics_;
};

}  // namespace millrace::worker
