// What a group tells of its cached pages, on one rank: each finds out what it has no more, rank 0 makes
// events of it and of prompts that ended. The engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/events/event_publisher.h"
#include "worker/events/held_pages.h"
#include "worker/events/own_pages.h"

namespace millrace::worker {

class CacheEvents {
 public:
  // `publisher`: rank 0's, which outlives it; null elsewhere.
  CacheEvents(int num_tp_ranks, EventPublisher* publisher)
      : held_(num_tp_ranks), publisher_(publisher) {}

  bool publishes() const { return publisher_ != nullptr; }
  // This rank was to remember these pages of a prompt that ended.
  void add_own(std::span<const PageContentKey> keys) { own_.add(keys); }
  // What of them is gone since the last time (OwnPages::take_gone).
  std::vector<BlockHash> take_gone(int64_t num_given_up, const OwnPages::FindPages& find) {
    return own_.take_gone(num_given_up, find);
  }
  // Rank 0's: a prompt that ended; then what take_gone() said on each rank, which may be of these prompts.
  void stored(const CachedChain& chain) { publisher_->publish(held_.add(chain)); }
  void gone(std::span<const std::vector<BlockHash>> by_rank) {
    publisher_->publish(held_.remove(by_rank));
  }

 private:
  OwnPages own_;
  HeldPages held_;  // rank 0's
  EventPublisher* publisher_;
};

}  // namespace millrace::worker
