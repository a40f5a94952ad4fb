// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/index/coverage.h"
#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// The keys and values of one head, and where its query group finds them.
struct HeadSlab {
  const KvSlab& kv;
  int64_t first_element;

  HeadSlab(const KvSlab& slab, int32_t num_query_heads, int32_t query_head)
      : kv(slab),
        first_element(query_head / (num_query_heads / slab.num_kv_heads) * slab.token_stride *
                      slab.head_dim) {}

  double k(int64_t token, int32_t d) const {
    return load(kv.k, kv.dtype, first_element + token * kv.head_dim + d);
  }
  double v(int64_t token, int32_t d) const {
    return load(kv.v, kv.dtype, first_element + token * kv.head_dim + d);
  }
};

// Softmax over exactly `keys`: subtract the maximum, exponentiate, normalise. Writes head_dim
// values and returns the natural log-sum-exp; no keys give zeros and -inf.
double attend(const std::vector<double>& query, double scale, const HeadSlab& slab,
              const std::vector<int64_t>& keys, std::vector<double>& out) {
  std::vector<double> scores;
  double maximum = kNothing;
  for (const int64_t key : keys) {
    double score = 0;
    for (int32_t d = 0; d < slab.kv.head_dim; ++d) score += query[d] * slab.k(key, d);
    scores.push_back(scale * score);
    maximum = std::max(maximum, scores.back());
  }
  out.assign(static_cast<size_t>(slab.kv.head_dim), 0.0);
  if (keys.empty()) return kNothing;
  double sum = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - maximum);
    sum += weight;
    for (int32_t d = 0; d < slab.kv.head_dim; ++d) out[d] += weight * slab.v(keys[i], d);
  }
  for (double& value : out) value /= sum;
  return maximum + std::log(sum);
}

void window_keys(int64_t window, int64_t position, std::vector<int64_t>& keys) {
  keys.clear();
  for (int64_t key = std::max<int64_t>(0, position - window + 1); key <= position; ++key) {
    keys.push_back(key);
  }
}

void causal_keys(const TileCoverage& coverage, int64_t position, std::vector<int64_t>& keys) {
  keys.clear();
  for (const KeyRange& range : coverage.ranges) {
    for (int64_t key = range.begin; key < range.end && key <= position; ++key) keys.push_back(key);
  }
  for (const int64_t column : coverage.columns) {
    if (column <= position) keys.push_back(column);
  }
}

}  // namespace

void attention(const AttentionParams& params) {
  const int32_t head_dim = params.kv.head_dim;
  TileCoverage coverage;
  std::vector<int64_t> keys;
  std::vector<double> query(static_cast<size_t>(head_dim));
  std::vector<double> out;
  for (int32_t h = 0; h < params.num_query_heads; ++h) {
    const HeadSlab slab(params.kv, params.num_query_heads, h);
    int64_t pairs = 0;
    for (size_t t = 0; t < params.tiles.size(); ++t) {
      const RowTile& tile = params.tiles[t];
      const bool dense = tile.position >= first_dense_position(params.kv.num_tokens);
      tile_coverage(params.index.head(h), tile, static_cast<int64_t>(t), dense, coverage);
      for (int64_t r = 0; r < tile.num_rows; ++r) {
        if (params.window > 0) {
          window_keys(params.window, tile.position + r, keys);
        } else {
          causal_keys(coverage, tile.position + r, keys);
        }
        pairs += static_cast<int64_t>(keys.size());
        const int64_t row = tile.local_row + r;
        const int64_t first = (row * params.num_query_heads + h) * head_dim;
        for (int32_t d = 0; d < head_dim; ++d)
          query[d] = load(params.q, params.kv.dtype, first + d);
        const double lse = attend(query, params.scale, slab, keys, out);
        const double share =
            params.sinks == nullptr ? 1 : 1 / (1 + std::exp(double{params.sinks[h]} - lse));
        for (int32_t d = 0; d < head_dim; ++d) {
          store(params.out, params.kv.dtype, first + d, share * out[d]);
        }
        if (params.lse != nullptr) params.lse[h * params.num_rows + row] = static_cast<float>(lse);
      }
    }
    if (params.covered_pairs != nullptr) params.covered_pairs[h] = pairs;
  }
}

void decode_attention(const DecodeAttentionParams& params) {
  const int32_t head_dim = params.kv.head_dim;
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < params.kv.num_tokens; ++key) keys.push_back(key);
  std::vector<double> out;
  for (int32_t h = 0; h < params.num_query_heads; ++h) {
    const float* q = params.q + int64_t{h} * head_dim;
    const HeadSlab slab(params.kv, params.num_query_heads, h);
    const double lse = attend(std::vector<double>(q, q + head_dim), params.scale, slab, keys, out);
    for (int32_t d = 0; d < head_dim; ++d) {
      params.out[int64_t{h} * head_dim + d] = static_cast<float>(out[d]);
    }
    params.lse[h] = static_cast<float>(lse);
  }
}

}  // namespace millrace::kernels::ref
