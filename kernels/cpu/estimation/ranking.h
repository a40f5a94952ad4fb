// SPDX-License-Identifier: Apache-2.0
// Positions ordered by value, highest first, ties to the smaller position: the total order that
// every selection of an index uses, so that what is chosen never depends on the algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::kernels::cpu {

// An object may be reused for several selections, but not shared between threads. NaN counts as
// larger than any number.
class Ranking {
 public:
  void clear() { keys_.clear(); }
  void reserve(size_t count) { keys_.reserve(count); }

  void add(int32_t position, float value);
  // Ranks before all values.
  void add_forced(int32_t position);

  // Appends the positions of the best min(count, size) to `out`, in no particular order.
  void best(size_t count, std::vector<int32_t>& out);

  // Appends the fewest best positions whose values add up to `target`, or all positions if the sum
  // stays below it. No value may be negative or forced.
  void cover(double target, std::vector<int32_t>& out);

 private:
  // High half: falls as the value rises; low half: the position. Smaller is better.
  std::vector<uint64_t> keys_;
};

}  // namespace millrace::kernels::cpu
