// Which pages of a layer and kv head stay where a request wants a smaller cache: the pure policy.
//
//   sinks   page 0 of the prompt, which every head attends to: always
//   window  the last 2 pages of the prompt, which the next tokens attend to: always
//   score   of the others those with the most attention mass, up to the budget; of equal ones the
//           earlier
//
// Each kv head of each layer keeps as many pages as any other, and pages of its own: what one head
// drops another may keep. The scores are those of all pages of the prompt, so the choice is the same
// whatever ranks hold them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace millrace::kvstore {

// To the nearest number, and never without sinks and window. `budget`: above 0, at most 1.
int64_t num_kept_pages(double budget, int64_t num_pages);

// By page. `scores`: of all pages of the prompt, finite and not negative.
std::vector<bool> choose_kept_pages(double budget, std::span<const float> scores);

// One that takes the place of choose_kept_pages, to compare with it.
using PageChoice = std::function<std::vector<bool>(int32_t layer, int32_t kv_head, double budget,
                                                   std::span<const float> scores)>;

}  // namespace millrace::kvstore
