// SPDX-License-Identifier: Apache-2.0
#include "plan/prefix_pure.h"

#include <fmt/format.h>

#include <iterator>

#include "kernels/index/tiling.h"

namespace millrace::plan {

namespace {

template <typename Holds>
bool all_heads(const HeadPlan& plan, Holds holds) {
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      if (!holds(plan.at(layer, head))) return false;
    }
  }
  return true;
}

}  // namespace

bool is_prefix_pure(const HeadPattern& head) {
  switch (head.pattern) {
    case Pattern::kDense:
    case Pattern::kAShape:
    case Pattern::kBlockSparse:
    case Pattern::kAdaptive:
      return true;
    case Pattern::kElastic:
      return head.beta == 0;
    case Pattern::kVerticalSlash:
      break;
  }
  return false;
}

bool is_prefix_pure(const HeadPlan& plan) {
  return all_heads(plan, [](const HeadPattern& head) { return is_prefix_pure(head); });
}

int64_t num_reusable_pages(const HeadPlan& plan, int64_t num_tokens) {
  const bool dense =
      all_heads(plan, [](const HeadPattern& head) { return head.pattern == Pattern::kDense; });
  return (dense ? num_tokens : kernels::first_dense_position(num_tokens)) / kernels::kPageTokens;
}

std::string plan_identity(const HeadPlan& plan) {
  std::string text = fmt::format("{}x{} ", plan.num_layers(), plan.num_heads());
  const HeadPattern* run = nullptr;
  int64_t run_length = 0;
  const auto end_run = [&] {
    if (run == nullptr) return;
    fmt::format_to(std::back_inserter(text), "{}*{}", run_length, format_head_pattern(*run));
    if (run->min_recall > 0) fmt::format_to(std::back_inserter(text), "@{}", run->min_recall);
    text += ';';
  };
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t h = 0; h < plan.num_heads(); ++h) {
      const HeadPattern& head = plan.at(layer, h);
      if (run == nullptr || !(*run == head)) {
        end_run();
        run = &head;
        run_length = 0;
      }
      ++run_length;
    }
  }
  end_run();
  return text;
}

}  // namespace millrace::plan
