// What a group tells of its cached pages, on one rank: each finds out what it has no more, rank 0 makes
// events of it, of prompts that ended, and of what it finds kept at its start. The engine's thread.
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
  // `publisher`: rank 0's, which outlives it; null elsewhere.
  CacheEvents(int num_tp_ranks, EventPublisher* publisher)
      : held_(num_tp_ranks), publisher_(publisher) {}

  bool publishes() const { return publisher_ != nullptr; }
  // This rank has these pages, or was to remember them from a prompt that ended.
  void add_own(std::span<const PageContentKey> keys) { own_.add(keys); }
  // What of them is gone since the last time (OwnPages::take_gone).
  std::vector<BlockHash> take_gone(int64_t num_given_up, const OwnPages::FindPages& find) {
    return own_.take_gone(num_given_up, find);
  }

  // Rank 0's. At the start, where pages are kept: those that the group has of an earlier life, as HeldPages::restore has
  // them. What is stored from here on is in `journal` too.
  void start_with(std::vector<StoredPage> pages, std::span<const std::vector<int>> owners,
                  JournalFile journal);
  // A prompt that ended; then what take_gone() said on each rank, which may be of these prompts.
  void stored(const CachedChain& chain);
  void gone(std::span<const std::vector<BlockHash>> by_rank) {
    publisher_->publish(held_.remove(by_rank));
  }

 private:
  OwnPages own_;
  // Rank 0's:
  HeldPages held_;
  std::optional<PageJournal> journal_;
  EventPublisher* publisher_;
};

}  // namespace millrace::worker
