// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/experts/expert_rows.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"

namespace millrace::kernels::cpu {

void ExpertRows::sort(const int32_t* experts, int64_t num_rows, int32_t experts_per_row,
                      int32_t num_experts) {
  const int64_t num_choices = num_rows * experts_per_row;
  begin_.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int64_t i = 0; i < num_choices; ++i) {
    MR_CHECK(experts[i] >= 0 && experts[i] < num_experts, "expert {} of {}", experts[i],
             num_experts);
    ++begin_[static_cast<size_t>(experts[i]) + 1];
  }
  const auto most = *std::ranges::max_element(begin_);
  MR_CHECK(most <= num_rows, "{} rows chose an expert {} times", num_rows, most);
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  choices_.resize(static_cast<size_t>(num_choices));
  auto next = begin_;
  for (int64_t i = 0; i < num_choices; ++i) {
    choices_[static_cast<size_t>(next[static_cast<size_t>(experts[i])]++)] = i;
  }
}

std::span<const int64_t> ExpertRows::choices_of(int32_t expert) const {
  const auto begin = static_cast<size_t>(begin_[static_cast<size_t>(expert)]);
  const auto end = static_cast<size_t>(begin_[static_cast<size_t>(expert) + 1]);
  return std::span(choices_).subspan(begin, end - begin);
}

}  // namespace millrace::kernels::cpu
