// Whether the K and V of a prompt's first pages are those of every prompt that begins with the same
// tokens, so that they may be kept for the next one.
//
// A head is prefix-pure if what the rows of a row tile attend to follows from the tokens up to the
// tile's end: not from the prompt's length, its last rows, the ranks or the tiles behind. Then K and V of
// a full page of layer l + 1 follow from the tokens up to its end, by induction over the layers. The
// prompt's last rows, which run densely whatever the plan, are the exception: their pages are not those
// of a longer prompt (num_reusable_pages).
//   pure      dense, a-shape, adaptive (sampled rows of a tile, keys up to its end), block-sparse
//             (mean query of a tile, mean keys of pages up to it), elastic with beta 0
//   impure    vertical-slash (its lists come from the last rows), elastic with beta > 0 (its window
//             grows with the prompt)
// Rules by length (plan_for_length, auto) turn a pattern into another one before the prompt is seen:
// ask about the plan that they leave, which is also the one that names pages.
#pragma once

#include <cstdint>
#include <string>

#include "plan/head_plan.h"

namespace millrace::model {

bool is_prefix_pure(const HeadPattern& head);
// All heads are.
bool is_prefix_pure(const HeadPlan& plan);

// Full pages, from the first on, whose K and V are those of every prompt that begins with them: all
// but those of rows that run densely because they are the last ones, if others of the plan do not.
int64_t num_reusable_pages(const HeadPlan& plan, int64_t num_tokens);

// What each head attends to, as text: equal for equal plans, and only for these. Runs of equal heads
// of all layers, one after the other: "2x8 10*dense;6*adaptive:0.2,0.8,11@0.9", layers x heads first,
// @ min_recall where it is not 0. The plan's name is not in it.
std::string plan_identity(const HeadPlan& plan);

}  // namespace millrace::model
