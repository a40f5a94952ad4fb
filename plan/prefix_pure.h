// SPDX-License-Identifier: Apache-2.0
// Whether the K and V of a prompt's first pages are those of every prompt that begins with the same
// tokens, so that they may be kept for the next one.
//
// A head is prefix-pure if what the rows of a row tile attend to depends only on the tokens up to
// the tile's end: not on the prompt's length, its last rows, the ranks or later tiles. Then K and V
// of a full page of layer l + 1 depend only on the tokens up to its end, by induction over the
// layers. The prompt's last rows, which run densely under any plan, are the exception: their pages
// are not those of a longer prompt (num_reusable_pages).
//   pure      dense, a-shape, adaptive (sampled rows of a tile, keys up to its end), block-sparse
//             (mean query of a tile, mean keys of pages up to it), elastic with beta 0
//   impure    vertical-slash (its lists come from the last rows), elastic with beta > 0 (its window
//             grows with the prompt)
// Rules by length (plan_for_length, auto) replace patterns before the prompt is seen. Ask about the
// resulting plan, which is also the one that names pages.
#pragma once

#include <cstdint>
#include <string>

#include "plan/head_plan.h"

namespace millrace::plan {

bool is_prefix_pure(const HeadPattern& head);
// Whether all heads are.
bool is_prefix_pure(const HeadPlan& plan);

// The number of full pages, from the first on, whose K and V are those of every prompt that begins
// with them. These are all pages, except those of rows that run densely because they are the last
// ones, if other heads of the plan are not dense.
int64_t num_reusable_pages(const HeadPlan& plan, int64_t num_tokens);

// What each head attends to, as text: equal for equal plans, and only for these. Lists runs of
// equal heads over all layers in order: "2x8 10*dense;6*adaptive:0.2,0.8,24@0.9", layers x heads
// first, @ min_recall where it is not 0. The plan's name is not part of it.
std::string plan_identity(const HeadPlan& plan);

}  // namespace millrace::plan
