// SPDX-License-Identifier: Apache-2.0
// Which pages the group has cached, as far as rank 0 knows from prompts that ended and from what
// the ranks say they have lost. Used by the engine's thread.
//
// The group has a page while a context-parallel rank has it with all its tensor-parallel ranks.
// Several context-parallel ranks may have it: a page that is gone for one rank's heads is computed
// again, perhaps elsewhere. The group has the beginning of a prompt while it has all its pages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvstore/pages/cache_log.h"
#include "worker/events/kv_event.h"
#include "worker/events/stored_page.h"

namespace millrace::worker {

// Pages that a rank has no longer.
struct LostPages {
  std::vector<BlockHash> pages;
  bool are_all_left = false;  // `pages` are all that the rank still has
};

// What the group has from now on, and what it has no longer.
struct HeldChange {
  std::vector<StoredPage> stored;  // each behind its parent, if that is new too
  std::vector<BlockHash> removed;
  // Names of beginnings (StoredPage::prefix_key). Some may have been there before.
  std::vector<uint64_t> prefixes;
  std::vector<uint64_t> gone_prefixes;
};

class HeldPages {
 public:
  // The most blocks that an event has: a batch is sent and kept as a whole.
  static constexpr int64_t kMaxStored = 256;
  static constexpr int64_t kMaxRemoved = 4096;

  // `has_tokens`: whether stored pages are given their tokens.
  HeldPages(int num_tp_ranks, bool has_tokens)
      : num_tp_ranks_(num_tp_ranks), has_tokens_(has_tokens) {}

  // A prompt has ended.
  HeldChange add(const kvstore::CachedPrompt& prompt);
  // At the start: pages that an earlier run of the group left, each behind its parent, and the
  // context-parallel ranks that have each page.
  HeldChange restore(std::vector<StoredPage> pages, std::span<const std::vector<int>> owners);
  // What each world rank has lost.
  HeldChange remove(std::span<const LostPages> by_rank);

  std::unordered_set<BlockHash> all() const;

 private:
  struct Page {
    std::vector<int> owners;  // context-parallel ranks
    std::optional<BlockHash> parent;
    uint64_t prefix_key = 0;
    bool is_reached = false;  // all pages before it are there too
  };

  // Whether the page is new.
  bool add(BlockHash hash, std::optional<BlockHash> parent, uint64_t prefix_key, int owner);
  // The page and those that follow it are reached from the beginning of their prompts, or no
  // longer. Appends the names of the beginnings.
  void set_reached(BlockHash first, bool is_reached, std::vector<uint64_t>& prefixes);
  void lose(BlockHash hash, int owner, HeldChange& change);
  std::vector<BlockHash> pages_of(int owner) const;

  const int num_tp_ranks_;
  const bool has_tokens_;
  std::unordered_map<BlockHash, Page> pages_;
  std::unordered_multimap<BlockHash, BlockHash> next_;  // pages by those before them
};

std::vector<KvEvent> events_of(const HeldChange& change);

}  // namespace millrace::worker
