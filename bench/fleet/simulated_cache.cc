#include "bench/fleet/simulated_cache.h"

namespace millrace::bench {

// Whether it was there.
bool SimulatedCache::touch(uint64_t key, int64_t depth, bool insert) {
  const Place place(now_, -depth, key);
  const auto known = places_.find(key);
  const bool was_there = known != places_.end();
  if (!was_there && !insert) return false;
  if (was_there) by_use_.erase(known->second);
  by_use_.insert(place);
  places_[key] = place;
  return was_there;
}

int64_t SimulatedCache::use(std::span<const uint64_t> keys) {
  ++now_;
  int64_t count = 0;
  while (count < std::ssize(keys) && touch(keys[static_cast<size_t>(count)], count, false)) ++count;
  return count;
}

std::vector<uint64_t> SimulatedCache::add(std::span<const uint64_t> keys) {
  std::vector<uint64_t> added;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!touch(keys[i], static_cast<int64_t>(i), true)) added.push_back(keys[i]);
  }
  return added;
}

std::vector<uint64_t> SimulatedCache::shrink(int64_t max_keys) {
  std::vector<uint64_t> gone;
  while (num_keys() > max_keys) {
    const uint64_t key = std::get<2>(*by_use_.begin());
    by_use_.erase(by_use_.begin());
    places_.erase(key);
    gone.push_back(key);
  }
  return gone;
}

}  // namespace millrace::bench
