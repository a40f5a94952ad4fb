// SPDX-License-Identifier: Apache-2.0
// One rank's cache of made-up keys and values in pages, and attention over it computed in double
// precision: the independent reference of progressive attention.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "common/float8.h"
#include "common/kv_scales.h"
#include "common/page_tokens.h"
#include "decode/attention/progressive_attention.h"
#include "tests/support/random_data.h"

namespace millrace::test {

// Makes float32 keys of one layer and kv head: [tokens, head_dim].
using MakeKeys = std::function<std::vector<float>(uint64_t seed, int64_t tokens, int32_t head_dim)>;

inline std::vector<float> normal_keys(uint64_t seed, int64_t tokens, int32_t head_dim) {
  return random_normals(seed, tokens * head_dim);
}
// Each page has its own centre; its keys deviate from it by `spread`.
inline MakeKeys clustered_keys(float distance, float spread) {
  return [=](uint64_t seed, int64_t tokens, int32_t head_dim) {
    auto keys = random_normals(seed, tokens * head_dim, spread);
    for (int64_t i = 0; i < tokens * head_dim; ++i) {
      const int64_t page = i / head_dim / kPageTokens;
      keys[static_cast<size_t>(i)] +=
          distance *
          random_normal(seed + 1000, static_cast<uint64_t>(page * head_dim + i % head_dim));
    }
    return keys;
  };
}

class PagedCache final : public decode::PageSource {
 public:
  // `float8`: keys and values are those that 8-bit float codes under these scales stand for.
  PagedCache(const decode::CacheShape& shape, const MakeKeys& make_keys, uint64_t seed,
             const KvScales* float8 = nullptr)
      : shape_(shape),
        digests_(shape.num_layers, shape.num_kv_heads, shape.num_pages(), shape.head_dim) {
    const int64_t row = shape.head_dim;
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
        const auto at = static_cast<uint64_t>(layer * 100 + h * 10);
        keys_.push_back(rounded(make_keys(seed + at, shape.num_tokens, shape.head_dim)));
        values_.push_back(rounded(random_normals(seed + at + 5, shape.num_tokens * row)));
        if (float8 != nullptr) {
          const auto& scale = float8->of(layer, h);
          for (float& x : keys_.back()) x = to_float(to_float8(x / scale.k)) * scale.k;
          for (float& x : values_.back()) x = to_float(to_float8(x / scale.v)) * scale.v;
        }
        const auto set = digests_.set(layer, h, digest(keys_.back()));
        MR_CHECK(set.ok(), "{}", set.error().to_string());
      }
    }
  }

  const decode::CacheShape& shape() const { return shape_; }
  const decode::PageDigests& digests() const { return digests_; }
  int64_t page_bytes() const {
    return 2 * kPageTokens * shape_.head_dim * dtype_bytes(shape_.dtype);
  }
  // Called before each fetch. If it returns an error, the fetch fails with it.
  std::function<Result<void>(std::span<const kvclient::NamedPage>)> on_fetch;
  int64_t num_fetched = 0;
  int64_t num_fetches = 0;

  Result<void> fetch(std::span<const kvclient::NamedPage> pages, decode::FetchUrgency,
                     Deadline) override {
    if (on_fetch) MR_RETURN_IF_ERROR(on_fetch(pages));
    ++num_fetches;
    num_fetched += std::ssize(pages);
    for (const auto& [name, to] : pages) {
      write(keys(name.layer, name.kv_head - shape_.first_kv_head), name.page, to);
      write(values(name.layer, name.kv_head - shape_.first_kv_head), name.page,
            to + page_bytes() / 2);
    }
    return {};
  }

  const std::vector<float>& keys(int32_t layer, int32_t kv_head) const {
    return keys_[static_cast<size_t>(layer * shape_.num_kv_heads + kv_head)];
  }
  const std::vector<float>& values(int32_t layer, int32_t kv_head) const {
    return values_[static_cast<size_t>(layer * shape_.num_kv_heads + kv_head)];
  }

  // Dense attention of one query head.
  struct Dense {
    std::vector<double> out;
    double lse = 0;
    std::vector<double> log_mass;  // by page
  };
  // Tokens before `first_token` are not attended to.
  Dense dense(int32_t layer, int32_t query_head, const float* q, int64_t first_token = 0) const {
    const int32_t kv_head = query_head / shape_.group();
    const auto& k = keys(layer, kv_head);
    const auto& v = values(layer, kv_head);
    const double scale = 1 / std::sqrt(static_cast<double>(shape_.head_dim));
    std::vector<double> scores(static_cast<size_t>(shape_.num_tokens));
    double max = -INFINITY;
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      double dot = 0;
      if (t < first_token) {
        scores[static_cast<size_t>(t)] = -INFINITY;
        continue;
      }
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        dot += double{q[d]} * double{k[static_cast<size_t>(t * shape_.head_dim + d)]};
      }
      scores[static_cast<size_t>(t)] = dot * scale;
      max = std::max(max, dot * scale);
    }
    Dense dense{.out = std::vector<double>(static_cast<size_t>(shape_.head_dim)),
                .log_mass = std::vector<double>(static_cast<size_t>(shape_.num_pages()))};
    double sum = 0;
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      const double weight = std::exp(scores[static_cast<size_t>(t)] - max);
      sum += weight;
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        dense.out[static_cast<size_t>(d)] +=
            weight * double{v[static_cast<size_t>(t * shape_.head_dim + d)]};
      }
    }
    for (double& x : dense.out) x /= sum;
    dense.lse = max + std::log(sum);
    for (int64_t page = 0; page < shape_.num_pages(); ++page) {
      const int64_t begin = page * kPageTokens;
      const int64_t end = std::min(begin + kPageTokens, shape_.num_tokens);
      double page_max = -INFINITY, page_sum = 0;
      for (int64_t t = begin; t < end; ++t) {
        page_max = std::max(page_max, scores[static_cast<size_t>(t)]);
      }
      for (int64_t t = begin; t < end; ++t) {
        page_sum += std::exp(scores[static_cast<size_t>(t)] - page_max);
      }
      dense.log_mass[static_cast<size_t>(page)] = page_max + std::log(page_sum);
    }
    return dense;
  }

 private:
  // To the dtype and back, as the reference is of what the pages hold.
  std::vector<float> rounded(std::vector<float> values) const {
    if (shape_.dtype == DType::kFloat32) return values;
    return widen_bits(narrow_bits(values, shape_.dtype), shape_.dtype);
  }
  void write(const std::vector<float>& rows, int64_t page, std::byte* to) const {
    const auto first = rows.begin() + page * kPageTokens * shape_.head_dim;
    const int64_t tokens = std::min(kPageTokens, shape_.num_tokens - page * kPageTokens);
    const std::vector<float> part(first, first + tokens * shape_.head_dim);
    std::memset(to, 0, static_cast<size_t>(page_bytes() / 2));
    if (shape_.dtype == DType::kFloat32) {
      std::memcpy(to, part.data(), part.size() * sizeof(float));
    } else {
      const auto bits = narrow_bits(part, shape_.dtype);
      std::memcpy(to, bits.data(), bits.size() * sizeof(uint16_t));
    }
  }
  std::vector<float> digest(const std::vector<float>& k) const {
    const int64_t dim = shape_.head_dim;
    std::vector<float> all;
    for (int64_t page = 0; page < shape_.num_pages(); ++page) {
      const int64_t begin = page * kPageTokens;
      const int64_t end = std::min(begin + kPageTokens, shape_.num_tokens);
      std::vector<float> low(static_cast<size_t>(dim)), high = low, radius = low;
      for (int64_t d = 0; d < dim; ++d) {
        const auto at = static_cast<size_t>(d);
        low[at] = high[at] = k[static_cast<size_t>(begin * dim + d)];
        for (int64_t t = begin; t < end; ++t) {
          low[at] = std::min(low[at], k[static_cast<size_t>(t * dim + d)]);
          high[at] = std::max(high[at], k[static_cast<size_t>(t * dim + d)]);
        }
        double sum = 0;
        for (int64_t t = begin; t < end; ++t) {
          sum += std::abs(double{k[static_cast<size_t>(t * dim + d)]} -
                          (double{low[at]} + double{high[at]}) / 2);
        }
        radius[at] = static_cast<float>(sum / static_cast<double>(end - begin));
      }
      for (const auto* part : {&low, &high, &radius}) {
        all.insert(all.end(), part->begin(), part->end());
      }
    }
    return all;
  }

  const decode::CacheShape shape_;
  decode::PageDigests digests_;
  std::vector<std::vector<float>> keys_, values_;  // by layer and kv head
};

}  // namespace millrace::test
