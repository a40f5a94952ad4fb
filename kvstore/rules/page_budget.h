// SPDX-License-Identifier: Apache-2.0
// Which pages of each layer and kv head stay if a request wants a smaller cache: the pure policy.
//
//   sinks   page 0 of the prompt, which every head attends to: always
//   window  the last 2 pages of the prompt, which the next tokens attend to: always
//   least   of each head, its pages with the most attention mass, up to half the budget
//   mass    with what is left of the budget, the pages of the layer with the largest shares of
//           their head's mass; among equals the first
//
// So each layer keeps as much as any other, and a head whose attention is spread keeps more than a
// head that looks at a few pages (AdaKV, arXiv 2407.11550). docs/notebook/kv-budget.md compares it
// with equal heads and with budgets by layer. The scores are those of all pages of the prompt, so
// the choice is the same whichever ranks hold them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/kept_pages.h"

namespace millrace::kvstore {

// Scores of all pages of a prompt, [layers, kv heads, pages], of the whole model: attention mass,
// finite and not negative. Heads may differ in scale.
struct PageScores {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int64_t num_pages = 0;
  std::vector<float> values = {};

  std::span<const float> of(int32_t layer, int32_t kv_head) const {
    return std::span(values).subspan(
        static_cast<size_t>((int64_t{layer} * num_kv_heads + kv_head) * num_pages),
        static_cast<size_t>(num_pages));
  }
};

// Average number of pages per kv head, rounded to the nearest number, but never less than sinks and
// window. `budget`: above 0, at most 1.
int64_t num_kept_pages(double budget, int64_t num_pages);

// num_kept_pages for each kv head of each layer on average, shared out as above.
KeptPages choose_kept_pages(double budget, const PageScores& scores);

// A policy that replaces choose_kept_pages, to compare with it.
using PageChoice = std::function<KeptPages(double budget, const PageScores& scores)>;

// The positions of the `count` largest values, in no order; among equals the first are taken.
std::vector<int64_t> largest(std::span<const float> values, int64_t count);

}  // namespace millrace::kvstore
