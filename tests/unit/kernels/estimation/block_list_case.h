// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of patterns that list blocks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {

inline IndexShape shape_for(const EstimationCase& c, int64_t num_tiles,
                            int64_t max_blocks = 1 << 20) {
  return {.num_heads = c.shape().num_query_heads, .num_tiles = num_tiles, .max_blocks = max_blocks};
}

// Expects the lists of `heads`, which share kv heads, to be the reference's, for prompts of all
// `lengths` and in every context. params(case, tiles, index) returns the parameters of a call for
// `heads`.
template <typename MakeParams, typename ByReference, typename ByCpu>
void expect_lists_of_the_reference(const std::vector<int64_t>& lengths,
                                   const std::vector<int32_t>& heads, uint64_t seed,
                                   const MakeParams& params, const ByReference& by_reference,
                                   const ByCpu& by_cpu) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t num_tokens : lengths) {
      EstimationCase c({.num_tokens = num_tokens,
                        .num_query_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = 40,
                        .dtype = dtype},
                       seed);
      const std::vector<RowTile> tiles = tile_rows(num_tokens);
      const IndexShape shape = shape_for(c, std::ssize(tiles));
      IndexStorage expected(shape);
      by_reference(params(c, tiles, expected));
      for (const cpu::Context& context : test::contexts()) {
        IndexStorage actual(shape);
        by_cpu(params(c, tiles, actual), context);
        for (const int32_t head : heads) EXPECT_EQ(actual.lists(head), expected.lists(head));
        EXPECT_TRUE(actual.guards_intact());
      }
    }
  }
}

}  // namespace millrace::kernels
