// SPDX-License-Identifier: Apache-2.0
// The prefix cache of a simulated group. It holds the keys of prompts' beginnings; each key stands
// for 512 tokens. It drops what kvstore/pages/prefix_cache.h would drop, by the same arithmetic
// (kvstore/rules/retention.h), or, for comparison, the least recently used keys, the deepest first.
// One thread.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kvstore/rules/retention.h"

namespace millrace::bench {

class SimulatedCache {
 public:
  enum class Keeps { kWorth, kLatest };
  explicit SimulatedCache(Keeps keeps = Keeps::kWorth) : keeps_(keeps) {}

  // How many of the prompt's keys, counted from the first, are in the cache. They count as used
  // now.
  int64_t use(std::span<const uint64_t> keys);
  // Adds all of the keys, each at this cost (1 or more). Returns those that were not there before.
  std::vector<uint64_t> add(std::span<const uint64_t> keys, double cost);
  // Drops keys until no more than `max_keys` are left. Returns the dropped keys.
  std::vector<uint64_t> shrink(int64_t max_keys);
  int64_t num_keys() const { return std::ssize(places_); }

 private:
  // (worth, last use, -depth, key), ascending in the order in which they are dropped.
  using Place = std::tuple<double, int64_t, int64_t, uint64_t>;
  struct Key {
    kvstore::Retention retention;
    int64_t depth;
  };

  Place place_of(uint64_t key, const Key& known) const;
  template <typename Change>
  void change(uint64_t key, Key& known, const Change& change);

  const Keeps keeps_;
  int64_t now_ = 0;  // counts prompts
  double clock_ = 0;
  std::set<Place> in_order_;
  std::unordered_map<uint64_t, Key> places_;
};

}  // namespace millrace::bench
