// SPDX-License-Identifier: Apache-2.0
// Which pages the group has cached, as far as rank 0 knows from prompts that ended and from what
// the ranks report gone; makes events of the changes. Used by the engine's thread.
//
// The group has a page while a context-parallel rank has it with all its tensor-parallel ranks.
// Several context-parallel ranks may have it: a page that is gone for one rank's heads is computed
// again, perhaps elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "worker/events/kv_event.h"
#include "worker/events/stored_page.h"

namespace millrace::worker {

// The first pages of a prompt, as they are cached when it ends.
struct CachedChain {
  std::span<const PageContentKey> keys;
  std::span<const int32_t> token_ids;  // of these pages at least
  std::span<const int> owners;         // the context-parallel rank that has each page
  std::string cache_salt;              // the request's
};

class HeldPages {
 public:
  // The most blocks that an event has: a batch is sent and kept as a whole.
  static constexpr int64_t kMaxStored = 256;
  static constexpr int64_t kMaxRemoved = 4096;

  explicit HeldPages(int num_tp_ranks) : num_tp_ranks_(num_tp_ranks) {}

  // Returns events for what the group did not have before.
  std::vector<KvEvent> add(const CachedChain& chain);
  // At the start: pages that an earlier run of the group left, each behind its parent, and the
  // context-parallel ranks that have each page.
  std::vector<KvEvent> restore(std::span<const StoredPage> pages,
                               std::span<const std::vector<int>> owners);
  bool holds(const PageContentKey& key) const { return owners_.contains(block_hash(key)); }
  std::unordered_set<BlockHash> all() const;
  // `gone`: for each world rank, the pages that it no longer has. Returns events for the pages that
  // the group no longer has.
  std::vector<KvEvent> remove(std::span<const std::vector<BlockHash>> gone);

 private:
  bool add(BlockHash hash, int owner);

  const int num_tp_ranks_;
  std::unordered_map<BlockHash, std::vector<int>> owners_;  // context-parallel ranks
};

}  // namespace millrace::worker
