#include <vector>

#include "common/check.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/estimation/block_lists.h"
#include "kernels/cuda/estimation/page_lists.h"
#include "kernels/cuda/operations.h"

namespace millrace::kernels::cuda {

// At gamma = 1 a tile attends to everything, however small: no sum of rounded shares decides that.
void build_adaptive(const AdaptiveParams& params, Context& context) {
  check_block_index(params.index, params.tiles, params.heads, params.gamma.size());
  MR_CHECK(params.row_outliers >= 0 && params.page_outliers >= 0, "{} row and {} page outliers",
           params.row_outliers, params.page_outliers);
  MR_CHECK(params.scale > 0, "scale {}", params.scale);
  std::vector<int32_t> dense_heads, heads;
  std::vector<float> gamma;
  for (size_t number = 0; number < params.heads.size(); ++number) {
    MR_CHECK(params.gamma[number] > 0 && params.gamma[number] <= 1, "gamma {}",
             params.gamma[number]);
    if (params.gamma[number] < 1) {
      heads.push_back(params.heads[number]);
      gamma.push_back(params.gamma[number]);
    } else {
      dense_heads.push_back(params.heads[number]);
    }
  }
  if (!dense_heads.empty() && !params.tiles.empty()) {
    launch_dense_lists(params.index, context.scratch.upload(std::span(dense_heads)),
                       static_cast<int32_t>(dense_heads.size()), context.stream);
  }
  build_page_lists({.q = params.q,
                    .num_query_heads = params.num_query_heads,
                    .scale = params.scale,
                    .kv = params.kv,
                    .tiles = params.tiles,
                    .index = params.index,
                    .row_outliers = params.row_outliers,
                    .page_outliers = params.page_outliers,
                    .heads = heads,
                    .gamma = gamma},
                   context);
}

}  // namespace millrace::kernels::cuda
