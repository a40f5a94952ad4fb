// SPDX-License-Identifier: Apache-2.0
// Q and K of one layer for the tests of estimation, and what lists of blocks must satisfy.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/api/estimation.h"
#include "tests/unit/kernels/index/index_arrays.h"
#include "tests/unit/kernels/index/random_index.h"

namespace millrace::kernels {

struct EstimationShape {
  int64_t num_tokens = 0;
  int32_t num_query_heads = 1;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 32;
  DType dtype = DType::kFloat32;
};

// Random normal data. To change values, use q() and k() before calling anything else.
class EstimationCase {
 public:
  EstimationCase(const EstimationShape& shape, uint64_t seed);

  float& q(int64_t row, int32_t head, int32_t d);
  float& k(int32_t kv_head, int64_t token, int32_t d);

  const EstimationShape& shape() const { return shape_; }
  std::vector<int32_t> all_heads() const;
  float scale() const;
  KvSlab kv();
  // rows(): all rows of the prompt. With tiles: the tiles' rows in their order, as the rank that
  // owns them holds them.
  const void* rows();
  const void* rows_of(const std::vector<RowTile>& tiles, std::vector<std::byte>& storage);
  LastRows last();

 private:
  const void* narrowed(const std::vector<float>& values, std::vector<uint16_t>& storage) const;

  EstimationShape shape_;
  std::vector<float> q_;  // [num_tokens, num_query_heads, head_dim]
  std::vector<float> k_;  // [num_kv_heads, token_stride, head_dim]
  std::vector<uint16_t> q16_, k16_;
};

// Multiplies all queries of head 0 by `factor`. The smaller it is, the more evenly attention is
// spread.
void scale_queries(EstimationCase& c, float factor);
// Sets all queries and keys of head 0 to `value`.
void flatten(EstimationCase& c, float value);

// The local tiles of a rank, with stripes dealt in snake order, and their numbers in the prompt.
struct RankTiles {
  std::vector<RowTile> tiles;
  std::vector<int64_t> numbers;
};
// Every rank of two and every rank of four, with stripes of 8 tiles.
std::vector<RankTiles> ranks_of_two_and_four(int64_t num_tokens);
// What a rank finds for its tiles must equal what a single rank finds for the whole prompt.
void expect_part_of_whole(const HeadLists& part, const RankTiles& owned, const HeadLists& whole);

// `some` was built with room for max_blocks blocks. It must hold each list of `all` that still
// fitted when its turn came; the other tiles are dense. Returns how many lists did not fit.
int64_t expect_lists_that_fit(const HeadLists& some, const HeadLists& all, int64_t max_blocks);

}  // namespace millrace::kernels
