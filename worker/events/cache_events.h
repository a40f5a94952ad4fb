// SPDX-License-Identifier: Apache-2.0
// What a group reports of its cached pages, on one rank. Each rank finds out which pages it no
// longer has. Rank 0 makes events of that, of prompts that ended, and of the pages that it finds
// kept at its start. Used by the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker/events/event_publisher.h"
#include "worker/events/held_pages.h"
#include "worker/events/own_pages.h"
#include "worker/events/page_journal.h"

namespace millrace::worker {

class CacheEvents {
 public:
  // `publisher`: rank 0's, outlives this object; null on other ranks.
  CacheEvents(int num_tp_ranks, EventPublisher* publisher)
      : held_(num_tp_ranks), publisher_(publisher) {}

  bool publishes() const { return publisher_ != nullptr; }
  // This rank has these pages, or was to remember them from a prompt that ended.
  void add_own(std::span<const PageContentKey> keys) { own_.add(keys); }
  // Which of its own pages are gone since the last call (OwnPages::take_gone).
  std::vector<BlockHash> take_gone(int64_t num_given_up, const OwnPages::FindPages& find) {
    return own_.take_gone(num_given_up, find);
  }

  // Rank 0 only, at the start, where pages are kept: the pages that an earlier run of the group
  // left, in the form that HeldPages::restore takes. From here on, stored pages are also written to
  // `journal`.
  void start_with(std::vector<StoredPage> pages, std::span<const std::vector<int>> owners,
                  JournalFile journal);
  // Call stored() for a prompt that ended, then gone() with what take_gone() returned on each rank,
  // which may include pages of this prompt.
  void stored(const CachedChain& chain);
  void gone(std::span<const std::vector<BlockHash>> by_rank) {
    publisher_->publish(held_.remove(by_rank));
  }

 private:
  OwnPages own_;
  // Rank 0 only:
  HeldPages held_;
  std::optional<PageJournal> journal_;
  EventPublisher* publisher_;
};

}  // namespace millrace::worker
