#include "kernels/cuda/estimation/vertical_slash.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/check.h"
#include "kernels/cuda/operations.h"

namespace millrace::kernels::cuda {
namespace {

// MInference raises a slash budget to this, a vertical one to kForcedColumns.
constexpr int64_t kFewestSlashes = 50;

std::vector<VerticalSlashHead> heads_of(const VerticalSlashParams& params) {
  const IndexShape& shape = params.index.shape;
  std::vector<VerticalSlashHead> heads;
  int64_t num_slashes = 0;
  for (size_t number = 0; number < params.heads.size(); ++number) {
    const int32_t head = params.heads[number];
    const VerticalSlashBudget budget = params.budgets[number];
    MR_CHECK(head >= 0 && head < shape.num_heads, "head {} of {} in the index", head,
             shape.num_heads);
    const auto verticals =
        std::min<int64_t>(std::max(budget.verticals, kForcedColumns), params.num_tokens);
    MR_CHECK(verticals <= shape.max_columns, "{} verticals into {} columns", verticals,
             shape.max_columns);
    const int64_t slashes =
        std::min(std::max<int64_t>(budget.slashes, kFewestSlashes), params.num_tokens);
    heads.push_back({.head = head,
                     .verticals = static_cast<int32_t>(verticals),
                     .slashes = static_cast<int32_t>(slashes),
                     .first_slash = num_slashes});
    num_slashes += slashes;
  }
  return heads;
}

}  // namespace

void build_vertical_slash(const VerticalSlashParams& params, Context& context) {
  MR_CHECK(params.num_tokens > 0 && params.num_tokens < std::numeric_limits<int32_t>::max() &&
               params.budgets.size() == params.heads.size(),
           "{} tokens, {} budgets for {} heads", params.num_tokens, params.budgets.size(),
           params.heads.size());
  MR_CHECK(params.index.shape.max_bands > 0, "no room for a band");
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
