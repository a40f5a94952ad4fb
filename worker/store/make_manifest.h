// SPDX-License-Identifier: Apache-2.0
// The manifest of a request, made from what each rank knows of its part. It is complete once the
// request is finished. Before that it has what a decode node must know to pull layer by layer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/kept_pages.h"
#include "common/kv_scales.h"
#include "engine/engine.h"
#include "kvstore/kv_store.h"
#include "protocol/manifest.pb.h"

namespace millrace::worker {

struct RankShard {
  std::string address;  // of the rank's KV server
  kvstore::Placement placement;
};

// Collective. Every rank's part, by rank.
Result<std::vector<RankShard>> gather_shards(comm::Communicator& world, const std::string& address,
                                             const kvstore::Placement& placement,
                                             Deadline deadline);

struct ManifestFacts {
  std::string request_id;
  std::string lease_id;
  Duration lease;
  std::string epoch;
  const engine::PrefillResult* result = nullptr;  // null: not finished
  const KeptPages* kept = nullptr;                // null: all pages
  const KvScales* float8 = nullptr;               // null: pages are in the compute dtype
  std::span<const RankShard> ranks;
};

// The manifest does not name ranks that hold replicas of another rank's kv heads, or no tokens of a
// short prompt. Pages of `prefix` stay with the rank that has them cached; `partition` deals those
// behind it.
Result<protocol::Manifest> make_manifest(const ManifestFacts& request,
                                         const model::ModelWeights& weights,
                                         const engine::Partition& partition,
                                         const engine::PromptPrefix& prefix,
                                         engine::GridShape grid);

}  // namespace millrace::worker
