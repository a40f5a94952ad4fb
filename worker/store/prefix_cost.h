// How much of a cached prefix is worth loading from slow tiers, and how long that may take: pure, and the same on all
// ranks for the same numbers.
//
// Of a prefix that ends after p pages a prompt takes
//   reading(p), before it starts: pages on disk are checked then, and kept ones brought into the tiers;
//   loading(p), as its layers come: pages on disk, a second time; in memory nothing counts;
//   computing the rows behind it.
// Ranks read their pages at once: the slowest counts. Where a device computes while pages come, the larger of loading
// and computing counts, elsewhere their sum.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/clock.h"
#include "worker/store/row_pace.h"

namespace millrace::worker {

struct SlowPage {
  int owner = 0;      // the rank that has it
  double read_s = 0;  // before the prompt starts
  double load_s = 0;  // as its layers come
  bool kept = false;  // it is not in the tiers
};

// Less than this is not worth being wrong about.
inline constexpr double kLeastGainS = 0.02;

struct PrefixTimes {
  int64_t num_tokens = 0;  // of the prompt
  RowCost rows;
  int num_owners = 1;
  bool loads_beside = false;
  double least_gain_s = kLeastGainS;
};

// Of `pages`, the first ones of a prompt: how many to load, those before the first slow one at least. All of them, unless
// fewer are faster by `least_gain_s`.
int64_t num_worth_loading(std::span<const SlowPage> pages, const PrefixTimes& times);

// A pause of a disk that others use too.
inline constexpr Duration kLeastPatience = std::chrono::milliseconds(100);
// Where nobody knows what computing takes.
inline constexpr Duration kUnmeasuredPatience = std::chrono::seconds(10);

// For how long reading kept ones of these pages may go on: no longer than to compute what is behind the first of them,
// and than `most`.
Duration patience_for_kept(std::span<const SlowPage> pages, const std::optional<RowCost>& rows,
                           Duration most);

}  // namespace millrace::worker
