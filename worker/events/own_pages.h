// The cached pages that a rank is to have, and which of them are gone: what it tells rank 0 of its
// part of the group's cache. The engine's thread.
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

  // It was to remember them; whether it does, the next look tells.
  void add(std::span<const PageContentKey> keys);
  // Those that it had or was to have and has not, since the last look. `num_given_up`: pages that the
  // store has given up since it began. Where that has not changed, only new pages are looked at.
  std::vector<BlockHash> take_gone(int64_t num_given_up, const FindPages& find);

 private:
  std::unordered_set<PageContentKey, PageContentKeyHash> pages_;
  std::vector<PageContentKey> new_;  // also in pages_
  int64_t num_given_up_ = 0;
};

}  // namespace millrace::worker
