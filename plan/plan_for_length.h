// SPDX-License-Identifier: Apache-2.0
// What a plan becomes at one prompt length. Budgets are written for long prompts; at a short length
// they hold nearly every pair, or save less than finding the lists costs. Such heads run densely,
// which covers a superset of what was asked for.
#pragma once

#include <cstdint>

#include "kernels/api/device.h"
#include "plan/head_plan.h"

namespace millrace::plan {

// The expected share of the causal pairs that the head's lists hold, from its budget alone: for
// vertical-slash and block-sparse. 0 for other patterns: closed forms cost nothing to find, and
// adaptive takes what the prompt needs.
double expected_density(const HeadPattern& head, int64_t num_tokens);

// Whether, at this device's costs, finding the head's lists and attending to them is expected to
// take longer than attending to everything. A function of the pattern, the length and the kind of
// device, so all ranks of all grids agree.
bool is_cheaper_dense(const HeadPattern& head, int64_t num_tokens, const kernels::SparseCost& cost);

// The plan with every head dense for which is_cheaper_dense holds, and with their number. It keeps
// the name of the plan that was asked for.
HeadPlan plan_for_length(HeadPlan plan, int64_t num_tokens, const kernels::SparseCost& cost);

}  // namespace millrace::plan
