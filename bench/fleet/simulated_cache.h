// The prefix cache of a simulated group: beginnings of prompts, by their keys, of 512 tokens each. The
// ones used least lately go first, of these the deepest, as in kvstore/prefix_cache.h. One thread.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace millrace::bench {

class SimulatedCache {
 public:
  // How many of the prompt's keys, from the first on, are there. They count as used now.
  int64_t use(std::span<const uint64_t> keys);
  // All of them are there from now on; returns those that were not.
  std::vector<uint64_t> add(std::span<const uint64_t> keys);
  // What goes, where only so many may stay.
  std::vector<uint64_t> shrink(int64_t max_keys);
  int64_t num_keys() const { return std::ssize(places_); }

 private:
  // (last use, -depth, key): ascending as they go.
  using Place = std::tuple<int64_t, int64_t, uint64_t>;

  bool touch(uint64_t key, int64_t depth, bool insert);

  int64_t now_ = 0;  // counts prompts
  std::set<Place> by_use_;
  std::unordered_map<uint64_t, Place> places_;
};

}  // namespace millrace::bench
