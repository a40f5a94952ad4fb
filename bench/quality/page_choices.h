// Ways to choose the pages of a smaller cache, to compare with kvstore::choose_kept_pages at equal
// bytes. All keep the sinks and the window of each head (kvstore/rules/placement.h).
#pragma once

#include "common/pages/kept_pages.h"
#include "kvstore/rules/page_budget.h"
#include "plan/head_plan.h"

namespace millrace::bench {

// Of each head of each layer as many pages, those with the highest scores.
KeptPages keep_alike(double budget, const kvstore::PageScores& scores);
// The same number at random, by a fixed seed.
KeptPages keep_at_random(double budget, const kvstore::PageScores& scores);
// The newest ones.
KeptPages keep_newest(double budget, const kvstore::PageScores& scores);

// By score, but the first three layers keep all, and the others share out the rest (PPIO).
KeptPages keep_first_layers(double budget, const kvstore::PageScores& scores);
// By score, from 1.5 times the budget in the first layer to half of it in the last (PyramidKV).
KeptPages keep_pyramid(double budget, const kvstore::PageScores& scores);

// The newest pages of each head, in proportion to its span in a plan of elastic heads (MoA): of a kv
// head the longest span of its query heads. Others than elastic heads have the whole prompt. No more pages
// than the budget has, and less than one for each head fewer.
kvstore::PageChoice keep_spans(const model::HeadPlan& plan, int64_t num_tokens);

}  // namespace millrace::bench
