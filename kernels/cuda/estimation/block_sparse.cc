#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/estimation/page_lists.h"
#include "kernels/cuda/operations.h"

namespace millrace::kernels::cuda {

// The mean of a tile's queries and that of a page's keys are representatives without outliers.
// Scores are neither scaled nor normalised: both keep the order.
void build_block_sparse(const BlockSparseParams& params, Context& context) {
  check_block_index(params.index, params.tiles, params.heads, params.top_k.size());
  build_page_lists({.q = params.q,
                    .num_query_heads = params.num_query_heads,
                    .kv = params.kv,
                    .tiles = params.tiles,
                    .index = params.index,
                    .heads = params.heads,
                    .top_k = params.top_k},
                   context);
}

}  // namespace millrace::kernels::cuda
