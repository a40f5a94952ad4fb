// The prefix cache of a simulated group: beginnings of prompts, by their keys, of 512 tokens each. What gives way is what
// would in kvstore/pages/prefix_cache.h, by the same arithmetic (kvstore/rules/retention.h), or, for comparison, the ones
// used least lately, of these the deepest. One thread.
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

  // How many of the prompt's keys, from the first on, are there. They count as used now.
  int64_t use(std::span<const uint64_t> keys);
  // All of them are there from now on, at this cost (1 or more) of a key; returns those that were not.
  std::vector<uint64_t> add(std::span<const uint64_t> keys, double cost);
  // What goes, where only so many may stay.
  std::vector<uint64_t> shrink(int64_t max_keys);
  int64_t num_keys() const { return std::ssize(places_); }

 private:
  // (worth, last use, -depth, key): ascending as they go.
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
