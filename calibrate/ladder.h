// SPDX-License-Identifier: Apache-2.0
// Candidates of the pattern search: a ladder is one kind of pattern at growing budgets.
//
// MInference's search takes a handful of candidates and changes each one's budget, in steps, until
// its cost in the kernel is the target's ("ChangeSpace", Jiang et al. 2024, algorithm 1). Here the
// steps are the rungs, eight to an octave (9 %), so that a candidate comes within about a tenth of
// the budget from below.
//   a-shape         64 sinks and a window; a quarter as many sinks as window (MInference: 1024,
//                   4096)
//   vertical-slash  columns to slashes as in MInference's table 7: 30 : any, 1 : 18, 1 : 3, 15 : 1;
//                   and 1 : 1
//   block-sparse    pages a row tile
//   adaptive        GAMMA and ENOUGH together, through the default and 0.1,0.7
//                   (ENOUGH = 0.8 + 0.1 log2(GAMMA / 0.2)); GAMMA alone with ENOUGH 1; ENOUGH alone
//                   with GAMMA 1
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/head_pattern.h"

namespace millrace::calibrate {

// Not empty. Starts at the cheapest rung; each rung costs about as much as the one before or more,
// and no two are equal.
using Ladder = std::vector<plan::HeadPattern>;

// The patterns that a search may choose from.
inline constexpr plan::Pattern kSearchedPatterns[] = {
    plan::Pattern::kAShape, plan::Pattern::kVerticalSlash, plan::Pattern::kBlockSparse,
    plan::Pattern::kAdaptive};

// Ladders of these patterns, up to the size of a prompt of num_tokens.
std::vector<Ladder> make_ladders(std::span<const plan::Pattern> patterns, int64_t num_tokens);

}  // namespace millrace::calibrate
