// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/attention_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/index/coverage.h"
#include "kernels/ref/operations.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random_data.h"

namespace millrace::kernels {
namespace {

// Tokens of the slab past num_tokens. They are NaN, so that reading them shows.
constexpr int64_t kSlackTokens = 3;

int64_t count_rows(const std::vector<RowTile>& tiles) {
  int64_t rows = 0;
  for (const RowTile& tile : tiles) rows += tile.num_rows;
  return rows;
}

std::vector<float> slab(const AttentionShape& shape, uint64_t seed) {
  const int64_t stride = shape.num_tokens + kSlackTokens;
  std::vector<float> values =
      test::random_normals(seed, shape.num_kv_heads * stride * shape.head_dim);
  for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
    const auto first = values.begin() + (h * stride + shape.num_tokens) * shape.head_dim;
    std::fill(first, first + kSlackTokens * shape.head_dim, std::nanf(""));
  }
  return values;
}

void round_to(DType dtype, std::vector<float>& values, std::vector<uint16_t>& bits) {
  bits = test::narrow_bits(values, dtype);
  values = test::widen_bits(bits, dtype);
}

}  // namespace

std::vector<HeadLists> dense_heads(const AttentionShape& shape) {
  return std::vector<HeadLists>(static_cast<size_t>(shape.num_query_heads),
                                dense_lists(shape.num_tokens));
}

std::vector<HeadLists> random_heads(const AttentionShape& shape, std::span<const RowTile> tiles,
                                    uint64_t seed) {
  std::vector<HeadLists> heads;
  for (int32_t h = 0; h < shape.num_query_heads; ++h) {
    heads.push_back(random_lists(seed + 10000 * static_cast<uint64_t>(h), shape.num_tokens, tiles));
  }
  return heads;
}

std::vector<RowTile> tiles_of_two_stripes() {
  return {{.local_row = 0, .position = 0, .num_rows = 64},
          {.local_row = 64, .position = 64, .num_rows = 64},
          {.local_row = 128, .position = 384, .num_rows = 64},
          {.local_row = 192, .position = 448, .num_rows = 64},
          {.local_row = 256, .position = 512, .num_rows = 64},
          {.local_row = 320, .position = 576, .num_rows = 37}};
}

AttentionCase::AttentionCase(const AttentionShape& shape, const std::vector<HeadLists>& heads,
                             uint64_t seed)
    : AttentionCase(shape, heads, tile_rows(shape.num_tokens), seed) {}

AttentionCase::AttentionCase(const AttentionShape& shape, const std::vector<HeadLists>& heads,
                             std::vector<RowTile> tiles, uint64_t seed)
    : shape_(shape),
      tiles_(std::move(tiles)),
      num_rows_(count_rows(tiles_)),
      index_(heads),
      q_(test::random_normals(seed, num_rows_ * shape.num_query_heads * shape.head_dim)),
      k_(slab(shape, seed + 1)),
      v_(slab(shape, seed + 2)) {
  for (float& value : k_) value *= shape.key_scale;
  if (shape_.dtype == DType::kFloat32) return;
  round_to(shape_.dtype, q_, q16_);
  round_to(shape_.dtype, k_, k16_);
  round_to(shape_.dtype, v_, v16_);
}

void AttentionCase::poison_keys(int64_t begin, int64_t end) {
  const int64_t stride = shape_.num_tokens + kSlackTokens;
  for (int64_t h = 0; h < shape_.num_kv_heads; ++h) {
    for (int64_t i = (h * stride + begin) * shape_.head_dim;
         i < (h * stride + end) * shape_.head_dim; ++i) {
      const auto at = static_cast<size_t>(i);
      k_[at] = v_[at] = std::nanf("");
      if (shape_.dtype != DType::kFloat32) k16_[at] = v16_[at] = 0x7fff;
    }
  }
}

AttentionParams AttentionCase::params(bool as_float) {
  AttentionParams params = {.q = q_.data(),
                            .num_rows = num_rows_,
                            .num_query_heads = shape_.num_query_heads,
                            .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
                            .kv = {.k = k_.data(),
                                   .v = v_.data(),
                                   .dtype = DType::kFloat32,
                                   .num_kv_heads = shape_.num_kv_heads,
                                   .head_dim = shape_.head_dim,
                                   .num_tokens = shape_.num_tokens,
                                   .token_stride = shape_.num_tokens + kSlackTokens},
                            .tiles = tiles_,
                            .index = index_.view(),
                            .window = shape_.window,
                            .sinks = sinks_.empty() ? nullptr : sinks_.data()};
  if (as_float || shape_.dtype == DType::kFloat32) return params;
  params.q = q16_.data();
  params.kv.k = k16_.data();
  params.kv.v = v16_.data();
  params.kv.dtype = shape_.dtype;
  return params;
}

AttentionResult AttentionCase::run_cpu(cpu::SimdLevel simd, int num_threads) {
  const auto num_elements = static_cast<int64_t>(q_.size());
  test::GuardedBuffer<float> out(num_elements);
  test::GuardedBuffer<BFloat16> out16(num_elements);
  test::GuardedBuffer<float> lse(num_rows_ * shape_.num_query_heads);
  const bool narrow = shape_.dtype == DType::kBFloat16;
  AttentionParams p = params(/*as_float=*/false);
  p.out = narrow ? static_cast<void*>(out16.data()) : out.data();
  p.lse = lse.data();
  test::GuardedBuffer<int64_t> pairs(shape_.num_query_heads);
  p.covered_pairs = pairs.data();
  cpu::attention(p, {.num_threads = num_threads, .simd = simd});
  EXPECT_TRUE(out.guards_intact());
  EXPECT_TRUE(out16.guards_intact());
  EXPECT_TRUE(lse.guards_intact());
  EXPECT_TRUE(pairs.guards_intact());
  return {.out = narrow ? test::widen(out16.values()) : out.values(),
          .lse = lse.values(),
          .covered_pairs = pairs.values()};
}

AttentionResult AttentionCase::run_ref() {
  AttentionResult result = {
      .out = std::vector<float>(q_.size()),
      .lse = std::vector<float>(static_cast<size_t>(num_rows_ * shape_.num_query_heads)),
      .covered_pairs = std::vector<int64_t>(static_cast<size_t>(shape_.num_query_heads))};
  AttentionParams p = params(/*as_float=*/true);
  p.out = result.out.data();
  p.lse = result.lse.data();
  p.covered_pairs = result.covered_pairs.data();
  ref::attention(p);
  return result;
}

AttentionResult AttentionCase::run_naive() {
  AttentionResult result = {
      .out = std::vector<float>(q_.size()),
      .lse = std::vector<float>(static_cast<size_t>(num_rows_ * shape_.num_query_heads))};
  for (int32_t h = 0; h < shape_.num_query_heads; ++h) {
    for (size_t t = 0; t < tiles_.size(); ++t) {
      for (int64_t r = 0; r < tiles_[t].num_rows; ++r) {
        naive_row(h, keys_of(h, t, r), tiles_[t].local_row + r, result);
      }
    }
  }
  return result;
}

std::vector<int64_t> AttentionCase::keys_of(int32_t head, size_t tile_number, int64_t row) {
  const RowTile& tile = tiles_[tile_number];
  if (shape_.window > 0) {
    std::vector<int64_t> seen;
    for (int64_t key = 0; key < shape_.num_tokens; ++key) {
      const int64_t back = tile.position + row - key;
      if (back >= 0 && back < shape_.window) seen.push_back(key);
    }
    return seen;
  }
  TileCoverage coverage;
  tile_coverage(index_.view().head(head), tile, static_cast<int64_t>(tile_number),
                tile.position >= first_dense_position(shape_.num_tokens), coverage);
  std::vector<int64_t> keys(coverage.columns.begin(), coverage.columns.end());
  for (const KeyRange& range : coverage.ranges) {
    for (int64_t key = range.begin; key < range.end; ++key) keys.push_back(key);
  }
  std::erase_if(keys, [&](int64_t key) { return key > tile.position + row; });
  return keys;
}

void AttentionCase::naive_row(int32_t head, const std::vector<int64_t>& keys, int64_t row,
                              AttentionResult& result) {
  const int64_t head_dim = shape_.head_dim;
  const int64_t kv_head = head / (shape_.num_query_heads / shape_.num_kv_heads);
  const int64_t kv_first = kv_head * (shape_.num_tokens + kSlackTokens);
  const int64_t first = (row * shape_.num_query_heads + head) * head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  float maximum = -std::numeric_limits<float>::infinity();
  std::vector<float> scores;
  for (const int64_t key : keys) {
    const float* k = k_.data() + (kv_first + key) * head_dim;
    float score = 0;
    for (int64_t d = 0; d < head_dim; ++d) score += q_[static_cast<size_t>(first + d)] * k[d];
    scores.push_back(score * scale);
    maximum = std::max(maximum, scores.back());
  }
  float* out = result.out.data() + first;
  float sum = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const float weight = std::exp(scores[i] - maximum);
    sum += weight;
    const float* v = v_.data() + (kv_first + keys[i]) * head_dim;
    const float rounded = rounded_to(shape_.dtype, weight);
    for (int64_t d = 0; d < head_dim; ++d) out[d] += rounded * v[d];
  }
  const float sink = sinks_.empty() ? 0 : std::exp(sinks_[static_cast<size_t>(head)] - maximum);
  for (int64_t d = 0; d < head_dim && sum > 0; ++d) {
    out[d] = rounded_to(shape_.dtype, out[d] / (sum + sink));
  }
  result.lse[static_cast<size_t>(head * num_rows_ + row)] = maximum + std::log(sum);
}

}  // namespace millrace::kernels
