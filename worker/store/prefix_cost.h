// SPDX-License-Identifier: Apache-2.0
// How much of a cached prefix is worth loading from slow tiers, and how long that may take. Pure
// functions: the same numbers give the same result on all ranks.
//
// With a prefix of p pages, a prompt takes time for
//   reading(p), before it starts: checks pages on disk, and brings kept ones into the tiers;
//   loading(p), layer by layer: reads pages on disk a second time; pages in memory count nothing;
//   computing the rows behind the prefix.
// Ranks read their pages at the same time, so the slowest rank counts. Where a device computes
// while pages come, the larger of loading and computing counts; elsewhere their sum.
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
  bool kept = false;  // not in the tiers
};

// A smaller gain does not count: the estimate may be wrong.
inline constexpr double kLeastGainS = 0.02;

struct PrefixTimes {
  int64_t num_tokens = 0;  // of the prompt
  RowCost rows;
  int num_owners = 1;
  bool loads_beside = false;
  double least_gain_s = kLeastGainS;
};

// How many of `pages`, the first pages of a prompt, to load: at least those before the first slow
// one, and all of them unless fewer are faster by `least_gain_s`.
int64_t num_worth_loading(std::span<const SlowPage> pages, const PrefixTimes& times);

// A disk that others use too may pause for this long.
inline constexpr Duration kLeastPatience = std::chrono::milliseconds(100);
// Used where the time to compute is not known.
inline constexpr Duration kUnmeasuredPatience = std::chrono::seconds(10);

// How long reading the kept pages among `pages` may take: no longer than it takes to compute the
// pages from the first kept one on (but kLeastPatience at least), and no longer than `most`.
Duration patience_for_kept(std::span<const SlowPage> pages, const std::optional<RowCost>& rows,
                           Duration most);

}  // namespace millrace::worker
