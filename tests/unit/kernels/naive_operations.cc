// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/naive_operations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace millrace::kernels::naive {
namespace {

const float* floats(const void* data) {
  return static_cast<const float*>(data);
}

float* floats(void* data) {
  return static_cast<float*>(data);
}

std::vector<float> row_of(const ConstMatrix& matrix, int64_t row) {
  std::vector<float> values;
  const int64_t first = row * matrix.row_stride;
  for (int64_t i = first; i < first + matrix.cols; ++i) {
    switch (matrix.dtype) {
      case DType::kFloat32:
        values.push_back(floats(matrix.data)[i]);
        break;
      case DType::kBFloat16:
        values.push_back(to_float(static_cast<const BFloat16*>(matrix.data)[i]));
        break;
      case DType::kFloat16:
        values.push_back(to_float(static_cast<const Float16*>(matrix.data)[i]));
        break;
    }
  }
  return values;
}

// Where the projection of `head` of row r is written: query heads first, then key heads, then value
// heads.
float* rope_output(const RopeQkvParams& p, int64_t row, int64_t head) {
  if (head < p.num_query_heads) {
    return floats(p.q) + (row * p.num_query_heads + head) * p.head_dim;
  }
  head -= p.num_query_heads;
  if (head < p.num_kv_heads) return floats(p.k) + (head * p.kv_stride + row) * p.head_dim;
  return floats(p.v) + ((head - p.num_kv_heads) * p.kv_stride + row) * p.head_dim;
}

void decode_head(const DecodeAttentionParams& p, int64_t head) {
  const int64_t dim = p.kv.head_dim;
  const int64_t kv_head = head / (p.num_query_heads / p.kv.num_kv_heads);
  const float* q = p.q + head * dim;
  const float* k = floats(p.kv.k) + kv_head * p.kv.token_stride * dim;
  const float* v = floats(p.kv.v) + kv_head * p.kv.token_stride * dim;
  std::vector<float> scores;
  float maximum = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < p.kv.num_tokens; ++t) {
    float score = 0;
    for (int64_t d = 0; d < dim; ++d) score += q[d] * k[t * dim + d];
    scores.push_back(score * p.scale);
    maximum = std::max(maximum, scores.back());
  }
  float* out = p.out + head * dim;
  std::fill_n(out, dim, 0.0F);
  float sum = 0;
  for (size_t t = 0; t < scores.size(); ++t) {
    const float weight = std::exp(scores[t] - maximum);
    sum += weight;
    for (int64_t d = 0; d < dim; ++d) out[d] += weight * v[static_cast<int64_t>(t) * dim + d];
  }
  for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
  p.lse[head] = maximum + std::log(sum);
}

}  // namespace

void rms_norm(const RmsNormParams& p) {
  for (int64_t r = 0; r < p.out.rows; ++r) {
    const float* x = p.x + r * p.out.cols;
    float* out = floats(p.out.data) + r * p.out.row_stride;
    float sum = 0;
    for (int64_t c = 0; c < p.out.cols; ++c) sum += x[c] * x[c];
    const float scale = 1 / std::sqrt(sum / static_cast<float>(p.out.cols) + p.eps);
    for (int64_t c = 0; c < p.out.cols; ++c) out[c] = x[c] * scale * p.weight[c];
  }
}

float activated(const Activation& activation, float gate, float up) {
  switch (activation.kind) {
    case Activation::Kind::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::Kind::kGeluTanh: {
      const float z =
          std::sqrt(2 / std::numbers::pi_v<float>) * (gate + 0.044715F * gate * gate * gate);
      return gate / (1 + std::exp(-2 * z)) * up;
    }
    case Activation::Kind::kClamped: {
      const float h = std::min(gate, activation.limit);
      const float v = std::clamp(up, -activation.limit, activation.limit);
      return h / (1 + std::exp(-activation.alpha * h)) * (v + 1);
    }
  }
  return std::nanf("");
}

void activate(const ActivateParams& p) {
  for (int64_t r = 0; r < p.out.rows; ++r) {
    const float* gate = floats(p.gate_up) + r * 2 * p.out.cols;
    const float* up = gate + p.out.cols;
    float* out = floats(p.out.data) + r * p.out.row_stride;
    for (int64_t c = 0; c < p.out.cols; ++c) out[c] = activated(p.activation, gate[c], up[c]);
  }
}

void rope_qkv(const RopeQkvParams& p) {
  const int64_t turned = p.num_turned(), half = turned / 2;
  const int64_t num_turned_heads = p.num_query_heads + p.num_kv_heads;
  const int64_t num_heads = num_turned_heads + p.num_kv_heads;
  for (int64_t r = 0; r < p.num_rows; ++r) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const float* from = floats(p.qkv) + (r * num_heads + h) * p.head_dim;
      float* to = rope_output(p, r, h);
      std::copy_n(from, p.head_dim, to);
      if (h >= num_turned_heads) continue;
      const bool of_q = h < p.num_query_heads;
      if (p.squares != nullptr) {
        const auto count = static_cast<float>(of_q ? p.num_q_squares : p.num_k_squares);
        const float mean = p.squares[2 * r + (of_q ? 0 : 1)] / count;
        const float* weights =
            of_q ? p.q_norm + h * p.head_dim : p.k_norm + (h - p.num_query_heads) * p.head_dim;
        const float scale = 1 / std::sqrt(mean + p.norm_eps);
        for (int64_t i = 0; i < p.head_dim; ++i) to[i] = from[i] * scale * weights[i];
      } else if (p.q_norm != nullptr) {
        rms_norm({.x = from,
                  .weight = of_q ? p.q_norm : p.k_norm,
                  .eps = p.norm_eps,
                  .out = dense_matrix(to, DType::kFloat32, 1, p.head_dim)});
      }
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(p.positions[r]) * p.inv_freq[i];
        const float cosine = std::cos(angle) * p.turn_scale;
        const float sine = std::sin(angle) * p.turn_scale;
        float& first = to[p.interleaved ? 2 * i : i];
        float& second = to[p.interleaved ? 2 * i + 1 : i + half];
        const float x = first, y = second;
        first = x * cosine - y * sine;
        second = y * cosine + x * sine;
      }
    }
  }
}

void gemm(const GemmParams& p) {
  std::vector<std::vector<float>> b;
  for (int64_t j = 0; j < p.b.rows; ++j) b.push_back(row_of(p.b, j));
  for (int64_t i = 0; i < p.a.rows; ++i) {
    const std::vector<float> a = row_of(p.a, i);
    for (int64_t j = 0; j < p.b.rows; ++j) {
      const std::vector<float>& column = b[static_cast<size_t>(j)];
      float sum = 0;
      for (size_t l = 0; l < a.size(); ++l) sum += a[l] * column[l];
      if (p.bias != nullptr) sum += p.bias[j];
      float& element = floats(p.c.data)[i * p.c.row_stride + j];
      element = p.accumulate ? element + sum : sum;
    }
  }
}

void decode_attention(const DecodeAttentionParams& p) {
  for (int64_t head = 0; head < p.num_query_heads; ++head) decode_head(p, head);
}

}  // namespace millrace::kernels::naive
