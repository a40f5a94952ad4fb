// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/estimation/estimation_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace millrace::kernels {
namespace {

constexpr int64_t kStrideSlack = 5;  // token_stride > num_tokens

// The tiles of rank `rank` of `num_ranks` when stripes of `stripe_tiles` tiles are dealt in snake
// order.
RankTiles snake_tiles(int64_t num_tokens, int64_t stripe_tiles, int num_ranks, int rank) {
  RankTiles owned;
  const std::vector<RowTile> all = tile_rows(num_tokens);
  int64_t local_row = 0;
  for (size_t number = 0; number < all.size(); ++number) {
    const int64_t stripe = static_cast<int64_t>(number) / stripe_tiles;
    const int64_t turn = stripe / num_ranks;
    const int64_t place = stripe % num_ranks;
    if ((turn % 2 == 0 ? place : num_ranks - 1 - place) != rank) continue;
    RowTile tile = all[number];
    tile.local_row = local_row;
    local_row += tile.num_rows;
    owned.tiles.push_back(tile);
    owned.numbers.push_back(static_cast<int64_t>(number));
  }
  return owned;
}

}  // namespace

EstimationCase::EstimationCase(const EstimationShape& shape, uint64_t seed)
    : shape_(shape),
      q_(test::random_normals(seed, shape.num_tokens * shape.num_query_heads * shape.head_dim)),
      k_(test::random_normals(
          seed + 1, (shape.num_tokens + kStrideSlack) * shape.num_kv_heads * shape.head_dim)) {}

float& EstimationCase::q(int64_t row, int32_t head, int32_t d) {
  return q_[static_cast<size_t>((row * shape_.num_query_heads + head) * shape_.head_dim + d)];
}

float& EstimationCase::k(int32_t kv_head, int64_t token, int32_t d) {
  const int64_t stride = shape_.num_tokens + kStrideSlack;
  return k_[static_cast<size_t>((kv_head * stride + token) * shape_.head_dim + d)];
}

std::vector<int32_t> EstimationCase::all_heads() const {
  std::vector<int32_t> heads(static_cast<size_t>(shape_.num_query_heads));
  std::iota(heads.begin(), heads.end(), 0);
  return heads;
}

float EstimationCase::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
}

const void* EstimationCase::narrowed(const std::vector<float>& values,
                                     std::vector<uint16_t>& storage) const {
  if (shape_.dtype == DType::kFloat32) return values.data();
  if (storage.empty()) storage = test::narrow_bits(values, shape_.dtype);
  return storage.data();
}

KvSlab EstimationCase::kv() {
  return {.k = narrowed(k_, k16_),
          .v = nullptr,  // estimation never reads V
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_tokens = shape_.num_tokens,
          .token_stride = shape_.num_tokens + kStrideSlack};
}

const void* EstimationCase::rows() {
  return narrowed(q_, q16_);
}

const void* EstimationCase::rows_of(const std::vector<RowTile>& tiles,
                                    std::vector<std::byte>& storage) {
  const int64_t row_bytes = shape_.num_query_heads * shape_.head_dim * dtype_bytes(shape_.dtype);
  const auto* all = static_cast<const std::byte*>(rows());
  for (const RowTile& tile : tiles) {
    const std::byte* first = all + tile.position * row_bytes;
    storage.insert(storage.end(), first, first + tile.num_rows * row_bytes);
  }
  return storage.data();
}

LastRows EstimationCase::last() {
  const int64_t num_rows = std::min(kLastRows, shape_.num_tokens);
  const int64_t first = shape_.num_tokens - num_rows;
  const int64_t row_bytes = shape_.num_query_heads * shape_.head_dim * dtype_bytes(shape_.dtype);
  return {.q = static_cast<const std::byte*>(rows()) + first * row_bytes,
          .num_rows = num_rows,
          .first_position = first,
          .num_query_heads = shape_.num_query_heads,
          .scale = scale()};
}

void scale_queries(EstimationCase& c, float factor) {
  for (int64_t t = 0; t < c.shape().num_tokens; ++t) {
    for (int32_t d = 0; d < c.shape().head_dim; ++d) c.q(t, 0, d) *= factor;
  }
}

void flatten(EstimationCase& c, float value) {
  for (int64_t t = 0; t < c.shape().num_tokens; ++t) {
    for (int32_t d = 0; d < c.shape().head_dim; ++d) c.q(t, 0, d) = c.k(0, t, d) = value;
  }
}

std::vector<RankTiles> ranks_of_two_and_four(int64_t num_tokens) {
  std::vector<RankTiles> all;
  for (const int num_ranks : {2, 4}) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      all.push_back(snake_tiles(num_tokens, /*stripe_tiles=*/8, num_ranks, rank));
    }
  }
  return all;
}

void expect_part_of_whole(const HeadLists& part, const RankTiles& owned, const HeadLists& whole) {
  ASSERT_EQ(part.blocks.size(), owned.numbers.size());
  for (size_t i = 0; i < owned.numbers.size(); ++i) {
    EXPECT_EQ(part.blocks[i], whole.blocks[static_cast<size_t>(owned.numbers[i])])
        << "tile " << owned.numbers[i];
  }
}

int64_t expect_lists_that_fit(const HeadLists& some, const HeadLists& all, int64_t max_blocks) {
  int64_t used = 0;
  int64_t num_overflows = 0;
  for (size_t tile = 0; tile < all.blocks.size(); ++tile) {
    const std::vector<int32_t>& list = all.blocks[tile];
    const bool dense = list.front() == kDenseTile;
    const bool fits = !dense && used + std::ssize(list) <= max_blocks;
    num_overflows += !dense && !fits;
    if (fits) used += std::ssize(list);
    EXPECT_EQ(some.blocks[tile], fits ? list : std::vector<int32_t>{kDenseTile})
        << "tile " << tile << ", room for " << max_blocks;
  }
  return num_overflows;
}

}  // namespace millrace::kernels
