// SPDX-License-Identifier: Apache-2.0
// Ways to choose the pages of a smaller cache, to compare with kvstore::choose_kept_pages at equal
// bytes. All keep each head's sinks and window (kvstore/rules/placement.h).
#pragma once

#include "common/kept_pages.h"
#include "kvstore/rules/page_budget.h"
#include "plan/head_plan.h"

namespace millrace::bench {

// The same number of pages for every head of every layer, those with the highest scores.
KeptPages keep_alike(double budget, const kvstore::PageScores& scores);
// The same number of random pages, by a fixed seed.
KeptPages keep_at_random(double budget, const kvstore::PageScores& scores);
// The same number of newest pages.
KeptPages keep_newest(double budget, const kvstore::PageScores& scores);

// By score, but the first three layers keep all pages, and the others share the rest of the budget
// (PPIO).
KeptPages keep_first_layers(double budget, const kvstore::PageScores& scores);
// By score, from 1.5 times the budget in the first layer to half of it in the last (PyramidKV).
KeptPages keep_pyramid(double budget, const kvstore::PageScores& scores);

// Each head's newest pages, in proportion to its span in a plan of elastic heads (MoA). The span of
// a kv head is the longest of its query heads' spans; other than elastic heads span the whole
// prompt. Keeps no more pages than the budget allows, and falls short of it by less than one page a
// head.
kvstore::PageChoice keep_spans(const plan::HeadPlan& plan, int64_t num_tokens);

}  // namespace millrace::bench
