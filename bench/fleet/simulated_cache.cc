// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/simulated_cache.h"

#include <algorithm>

namespace millrace::bench {

SimulatedCache::Place SimulatedCache::place_of(uint64_t key, const Key& known) const {
  const auto [worth, last_used, shallow] = known.retention.order(known.depth);
  return {keeps_ == Keeps::kWorth ? worth : 0, last_used, shallow, key};
}

template <typename Change>
void SimulatedCache::change(uint64_t key, Key& known, const Change& change) {
  in_order_.erase(place_of(key, known));
  change(known.retention);
  in_order_.insert(place_of(key, known));
}

int64_t SimulatedCache::use(std::span<const uint64_t> keys) {
  ++now_;
  int64_t count = 0;
  for (const uint64_t key : keys) {
    const auto known = places_.find(key);
    if (known == places_.end()) break;
    change(key, known->second, [this](auto& retention) { retention.use(now_, clock_); });
    ++count;
  }
  return count;
}

std::vector<uint64_t> SimulatedCache::add(std::span<const uint64_t> keys, double cost) {
  std::vector<uint64_t> added;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [known, is_new] = places_.try_emplace(
        keys[i], Key{.retention = kvstore::Retention(now_), .depth = static_cast<int64_t>(i)});
    if (is_new) added.push_back(keys[i]);
    change(keys[i], known->second, [this, cost](auto& retention) {
      retention.use(now_, clock_);
      retention.raise_cost(cost, clock_);
    });
  }
  return added;
}

std::vector<uint64_t> SimulatedCache::shrink(int64_t max_keys) {
  std::vector<uint64_t> gone;
  while (num_keys() > max_keys) {
    const auto first = in_order_.begin();
    const uint64_t key = std::get<3>(*first);
    clock_ = std::max(clock_, std::get<0>(*first));
    in_order_.erase(first);
    places_.erase(key);
    gone.push_back(key);
  }
  return gone;
}

}  // namespace millrace::bench
