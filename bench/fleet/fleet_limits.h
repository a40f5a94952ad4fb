// SPDX-License-Identifier: Apache-2.0
// What a fleet runs out of first as its load grows.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/fleet/simulation.h"

namespace millrace::bench {

enum class Limit {
  kObjective,  // prompts are answered later than desired
  kQueue,      // the queue has no place left
  kDeadline,   // refused because the deadline cannot be met, or the deadline passed
  kRoom,       // no group has room for another cache
};
inline constexpr std::array<std::string_view, 4> kLimitNames = {"objective", "queue", "deadline",
                                                                "room"};

// The desired mean time from arrival to answer, for prompts of these lengths; services for long
// prompts state their objectives this way.
struct Objective {
  int64_t from_tokens = 16 << 10;
  int64_t to_tokens = 256 << 10;
  double mean_s = 2.5;
};

// The share of prompts that may fail before a limit counts as hit.
inline constexpr double kToleratedShare = 0.001;

// Whether each Limit was hit.
using Hit = std::array<bool, kLimitNames.size()>;
Hit limits_hit(const std::vector<Outcome>& outcomes, const Objective& objective);

// The lowest load at which each limit is hit, with loads added in ascending order; none if the
// limit was never hit.
class FirstLimits {
 public:
  void add(double load, const Hit& hit);
  std::optional<double> load_of(Limit limit) const { return loads_[static_cast<size_t>(limit)]; }
  // The limit that is hit first; if several are, the first in the order of Limit.
  std::optional<Limit> first() const;
  // Prompts already fail, so higher loads would show nothing new.
  bool fails() const;

 private:
  std::array<std::optional<double>, kLimitNames.size()> loads_;
};

}  // namespace millrace::bench
