// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

void embed(const EmbedParams& params) {
  for (int64_t r = 0; r < params.num_rows; ++r) {
    for (int64_t c = 0; c < params.table.cols; ++c) {
      params.hidden[r * params.table.cols + c] = static_cast<float>(
          params.scale * load(params.table.data, params.table.dtype,
                              params.token_ids[r] * params.table.row_stride + c));
    }
  }
}

void rms_norm(const RmsNormParams& params) {
  const Matrix& out = params.out;
  for (int64_t r = 0; r < out.rows; ++r) {
    const float* x = params.x + r * out.cols;
    double sum = 0;
    for (int64_t c = 0; c < out.cols; ++c) sum += double{x[c]} * x[c];
    const double root = std::sqrt(sum / static_cast<double>(out.cols) + params.eps);
    for (int64_t c = 0; c < out.cols; ++c) {
      store(out.data, out.dtype, r * out.row_stride + c, x[c] / root * params.weight[c]);
    }
  }
}

namespace {

// The angle is a float32 product by definition, because every model served here was trained with
// it: at position 10^6 the double product is a different angle (docs/numerics.md).
double angle(int32_t position, float inv_freq) {
  return static_cast<float>(position) * inv_freq;
}

double sum_of_squares(const void* data, DType dtype, int64_t from, int64_t count) {
  double sum = 0;
  for (int64_t i = from; i < from + count; ++i) {
    const double x = load(data, dtype, i);
    sum += x * x;
  }
  return sum;
}

// The norms of the heads of Q, or of those of K, in a row.
struct HeadNorms {
  const float* weights = nullptr;  // null: none
  bool together = false;           // one norm over all heads
  double mean_square = 0;          // if so
};

HeadNorms norms_of(const RopeQkvParams& params, int64_t row, bool of_q) {
  HeadNorms norms{.weights = of_q ? params.q_norm : params.k_norm,
                  .together = params.squares != nullptr};
  if (norms.together) {
    const auto count = static_cast<double>(of_q ? params.num_q_squares : params.num_k_squares);
    norms.mean_square = params.squares[2 * row + (of_q ? 0 : 1)] / count;
  }
  return norms;
}

// Head `number` of Q or of K, which begins at element `from` of qkv, normalised if `norms` has
// weights.
std::vector<double> load_head(int64_t from, int64_t number, const HeadNorms& norms,
                              const RopeQkvParams& params) {
  const int64_t dim = params.head_dim;
  std::vector<double> head;
  for (int64_t i = 0; i < dim; ++i) head.push_back(load(params.qkv, params.qkv_dtype, from + i));
  if (norms.weights == nullptr) return head;
  const double mean = norms.together ? norms.mean_square
                                     : sum_of_squares(params.qkv, params.qkv_dtype, from, dim) /
                                           static_cast<double>(dim);
  const double root = std::sqrt(mean + params.norm_eps);
  const float* weights = norms.weights + (norms.together ? number * dim : 0);
  for (size_t i = 0; i < head.size(); ++i) head[i] = head[i] / root * weights[i];
  return head;
}

// Writes the rotated head from element `to` of `out` on.
void rotate(const std::vector<double>& head, int32_t position, const RopeQkvParams& params,
            void* out, int64_t to) {
  const int32_t half = params.num_turned() / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double a = angle(position, params.inv_freq[i]);
    const double cosine = std::cos(a) * params.turn_scale;
    const double sine = std::sin(a) * params.turn_scale;
    const int32_t at = params.interleaved ? 2 * i : i;
    const int32_t other = params.interleaved ? at + 1 : i + half;
    const double first = head[static_cast<size_t>(at)], second = head[static_cast<size_t>(other)];
    store(out, params.dtype, to + at, first * cosine - second * sine);
    store(out, params.dtype, to + other, second * cosine + first * sine);
  }
  for (int32_t i = 2 * half; i < params.head_dim; ++i) {
    store(out, params.dtype, to + i, head[static_cast<size_t>(i)]);
  }
}

}  // namespace

void qkv_squares(const QkvSquaresParams& params) {
  const int64_t q_width = int64_t{params.num_query_heads} * params.head_dim;
  const int64_t k_width = int64_t{params.num_kv_heads} * params.head_dim;
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const int64_t q = r * (q_width + 2 * k_width);
    params.squares[2 * r] =
        static_cast<float>(sum_of_squares(params.qkv, params.qkv_dtype, q, q_width));
    params.squares[2 * r + 1] =
        static_cast<float>(sum_of_squares(params.qkv, params.qkv_dtype, q + q_width, k_width));
  }
}

void rope_qkv(const RopeQkvParams& params) {
  const int64_t dim = params.head_dim;
  const int64_t num_heads = params.num_query_heads + 2 * int64_t{params.num_kv_heads};
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const int64_t q = r * num_heads * dim;
    const int64_t k = q + params.num_query_heads * dim;
    const int64_t v = k + params.num_kv_heads * dim;
    const auto q_norms = norms_of(params, r, /*of_q=*/true);
    const auto k_norms = norms_of(params, r, /*of_q=*/false);
    for (int64_t h = 0; h < params.num_query_heads; ++h) {
      rotate(load_head(q + h * dim, h, q_norms, params), params.positions[r], params, params.q,
             (r * params.num_query_heads + h) * dim);
    }
    for (int64_t h = 0; h < params.num_kv_heads; ++h) {
      const int64_t begin = (h * params.kv_stride + r) * dim;
      rotate(load_head(k + h * dim, h, k_norms, params), params.positions[r], params, params.k,
             begin);
      for (int64_t i = 0; i < dim; ++i) {
        store(params.v, params.dtype, begin + i,
              load(params.qkv, params.qkv_dtype, v + h * dim + i));
      }
    }
  }
}

double activated(const Activation& activation, double gate, double up) {
  switch (activation.kind) {
    case Activation::Kind::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::Kind::kGeluTanh: {
      const double z = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
      return 0.5 * gate * (1 + std::tanh(z)) * up;
    }
    case Activation::Kind::kClamped: {
      const double h = std::min(gate, double{activation.limit});
      const double v = std::clamp(up, -double{activation.limit}, double{activation.limit});
      return h / (1 + std::exp(-activation.alpha * h)) * (v + 1);
    }
  }
  return std::nan("");
}

void activate(const ActivateParams& params) {
  const Matrix& out = params.out;
  for (int64_t r = 0; r < out.rows; ++r) {
    const float* gate = params.gate_up + r * 2 * out.cols;
    const float* up = gate + out.cols;
    for (int64_t c = 0; c < out.cols; ++c) {
      store(out.data, out.dtype, r * out.row_stride + c,
            activated(params.activation, gate[c], up[c]));
    }
  }
}

void add(const AddParams& params) {
  for (int64_t i = 0; i < params.count; ++i) params.x[i] += params.y[i];
}

}  // namespace millrace::kernels::ref
