// What a fleet runs out of first as its load grows.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/fleet/simulation.h"

namespace millrace::bench {

enum class Limit {
  kObjective,  // prompts are answered later than is wished
  kQueue,      // no place to wait
  kDeadline,   // refused, since it cannot be met, or passed
  kRoom,       // no group has room for another cache
};
inline constexpr std::array<std::string_view, 4> kLimitNames = {"objective", "queue", "deadline",
                                                                "room"};

// The mean time from arrival to answer of prompts of so many tokens; as services for long prompts state it.
struct Objective {
  int64_t from_tokens = 16 << 10;
  int64_t to_tokens = 256 << 10;
  double mean_s = 2.5;
};

// Of prompts that may fail before a limit counts as hit.
inline constexpr double kToleratedShare = 0.001;

// By Limit, whether it was hit.
using Hit = std::array<bool, kLimitNames.size()>;
Hit limits_hit(const std::vector<Outcome>& outcomes, const Objective& objective);

// The least of ascending loads at which each limit is hit; nothing where it never was.
class FirstLimits {
 public:
  void add(double load, const Hit& hit);
  std::optional<double> load_of(Limit limit) const { return loads_[static_cast<size_t>(limit)]; }
  // The one that is hit first; of several the first of Limit's order.
  std::optional<Limit> first() const;
  // Prompts fail: what comes at higher loads is known.
  bool fails() const;

 private:
  std::array<std::optional<double>, kLimitNames.size()> loads_;
};

}  // namespace millrace::bench
