// SPDX-License-Identifier: Apache-2.0
// The cached pages that a rank should have, and which of them are gone: what the rank reports to
// rank 0 about its part of the group's cache. Used by the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_set>
#include <vector>

#include "worker/events/kv_event.h"

namespace millrace::worker {

class OwnPages {
 public:
  // Which pages the rank's store remembers (KvStore::find_cached).
  using FindPages = std::function<std::vector<bool>(std::span<const PageContentKey>)>;

  // The rank was to remember these pages; the next take_gone() finds out whether it does.
  void add(std::span<const PageContentKey> keys);
  // The pages that the rank had or was to have and no longer has, since the last call.
  // `num_given_up`: how many pages the store has given up since it began. While that has not
  // changed, only new pages are looked up.
  std::vector<BlockHash> take_gone(int64_t num_given_up, const FindPages& find);

 private:
  std::unordered_set<PageContentKey, PageContentKeyHash> pages_;
  std::vector<PageContentKey> new_;  // also in pages_
  int64_t num_given_up_ = 0;
};

}  // namespace millrace::worker
