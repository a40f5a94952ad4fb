// SPDX-License-Identifier: Apache-2.0
// Changes leases on all ranks of a group or on none: if a lease were not renewed everywhere, the
// pages of some ranks would outlive those of others.
#pragma once

#include "kvstore/leased_pages.h"
#include "protocol/group_messages.pb.h"
#include "worker/prompt/coordinator_reporter.h"
#include "worker/prompt/group_options.h"
#include "worker/sync/rank_sync.h"

namespace millrace::worker {

class LeaseCommands {
 public:
  // All outlive it. `store`: null on a rank that stores nothing because another stores its kv
  // heads.
  LeaseCommands(kvstore::LeasedPages* store, RankSync& sync, CoordinatorReporter& reporter,
                const GroupOptions& options)
      : store_(store), sync_(sync), reporter_(reporter), options_(options) {}

  // Collective. The coordinator is told the outcome. An error (kPeerLost) ends the group.
  Result<void> apply(const protocol::LeaseChange& change);

 private:
  Result<void> apply_here(const protocol::LeaseChange& change, Duration lease);

  kvstore::LeasedPages* store_;
  RankSync& sync_;
  CoordinatorReporter& reporter_;
  const GroupOptions& options_;
};

}  // namespace millrace::worker
