// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/vertical_slash/vertical_slash.h"

#include <vector>

#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

std::vector<VerticalSlashHead> heads_of(const VerticalSlashParams& params) {
  std::vector<VerticalSlashHead> heads;
  int64_t num_slashes = 0;
  for (size_t number = 0; number < params.heads.size(); ++number) {
    const VerticalSlashBudget budget = checked_budget(params, number);
    heads.push_back({.head = params.heads[number],
                     .verticals = budget.verticals,
                     .slashes = budget.slashes,
                     .first_slash = num_slashes});
    num_slashes += budget.slashes;
  }
  return heads;
}

}  // namespace

void build_vertical_slash(const VerticalSlashParams& params, Context& context) {
  check_vertical_slash(params);
  if (params.heads.empty()) return;
  const std::vector<VerticalSlashHead> heads = heads_of(params);
  const int64_t num_slashes = heads.back().first_slash + heads.back().slashes;
  const VerticalSlashArguments arguments = {
      .column_sums = params.column_sums,
      .diagonal_sums = params.diagonal_sums,
      .num_tokens = params.num_tokens,
      .heads = context.scratch.upload(std::span(heads)),
      .num_heads = static_cast<int32_t>(heads.size()),
      .work = {.offsets = context.scratch.allocate<int32_t>(num_slashes),
               .bands = context.scratch.allocate<Band>(num_slashes),
               .closes_gap = context.scratch.allocate<int32_t>(num_slashes)},
      .index = params.index,
  };
  launch_vertical_slash(arguments, context.stream);
}

}  // namespace millrace::kernels::cuda
