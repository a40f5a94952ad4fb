// What a plan becomes at one prompt length: budgets are written for long prompts, and at a short
// one they hold nearly every pair, or save less than finding the lists costs. Such heads run
// densely, a superset of what was asked for.
#pragma once

#include <cstdint>

#include "kernels/api/device.h"
#include "plan/head_plan.h"

namespace millrace::model {

// Share of the causal pairs that the head's lists are expected to hold, from its budget alone:
// vertical-slash and block-sparse. 0 for other patterns: closed forms cost nothing to find, and
// adaptive takes what the prompt needs.
double expected_density(const HeadPattern& head, int64_t num_tokens);

// Whether finding the head's lists and attending to them is expected to take longer than attending
// to everything, on a device of that cost. A function of the pattern, the length and the kind of
// device: all ranks of all grids agree.
bool is_cheaper_dense(const HeadPattern& head, int64_t num_tokens, const kernels::SparseCost& cost);

// The plan with every head dense that is_cheaper_dense, and their number in it. The name stays that
// of what was asked for.
HeadPlan plan_for_length(HeadPlan plan, int64_t num_tokens, const kernels::SparseCost& cost);

}  // namespace millrace::model
