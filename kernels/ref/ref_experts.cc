// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The dot product of row i of a and row j of b.
double dot(const ConstMatrix& a, int64_t i, const ConstMatrix& b, int64_t j) {
  double sum = 0;
  for (int64_t l = 0; l < a.cols; ++l) {
    sum +=
        load(a.data, a.dtype, i * a.row_stride + l) * load(b.data, b.dtype, j * b.row_stride + l);
  }
  return sum;
}

// The number by which the exponentials of the chosen experts are divided.
double denominator(const std::vector<double>& exponentials, const std::vector<int32_t>& order,
                   const RouteParams& p) {
  if (p.weighting == ExpertWeighting::kSoftmax) {
    return std::accumulate(exponentials.begin(), exponentials.end(), 0.0);
  }
  double sum = 0;
  for (int32_t n = 0; n < p.experts_per_row; ++n) {
    sum += exponentials[static_cast<size_t>(order[static_cast<size_t>(n)])];
  }
  return sum;
}

bool by_sigmoids(const RouteParams& p) {
  return p.weighting == ExpertWeighting::kSigmoid || p.weighting == ExpertWeighting::kChosenSigmoid;
}

}  // namespace

void route(const RouteParams& p) {
  const auto router =
      dense_matrix(static_cast<const void*>(p.router), DType::kFloat32, p.num_experts, p.a.cols);
  std::vector<double> logits(static_cast<size_t>(p.num_experts));
  std::vector<double> exponentials(logits.size());
  std::vector<int32_t> order(logits.size());
  for (int64_t row = 0; row < p.a.rows; ++row) {
    for (size_t e = 0; e < logits.size(); ++e) {
      logits[e] = dot(p.a, row, router, static_cast<int64_t>(e));
      if (p.bias != nullptr) logits[e] += p.bias[e];
    }
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](int32_t e) {
      const double logit = logits[static_cast<size_t>(e)];
      return p.correction == nullptr ? logit : sigmoid(logit) + p.correction[e];
    });
    std::ranges::transform(logits, exponentials.begin(), [](double x) { return std::exp(x); });
    double sum = denominator(exponentials, order, p);
    if (p.weighting == ExpertWeighting::kSigmoid) sum = 1;
    if (p.weighting == ExpertWeighting::kChosenSigmoid) {
      sum = 0;
      for (int32_t n = 0; n < p.experts_per_row; ++n) {
        sum += sigmoid(logits[static_cast<size_t>(order[static_cast<size_t>(n)])]);
      }
    }
    for (int32_t n = 0; n < p.experts_per_row; ++n) {
      const int32_t expert = order[static_cast<size_t>(n)];
      const auto e = static_cast<size_t>(expert);
      const double weight =
          p.factor * (by_sigmoids(p) ? sigmoid(logits[e]) : exponentials[e]) / sum;
      p.experts[row * p.experts_per_row + n] = expert;
      p.weights[row * p.experts_per_row + n] = static_cast<float>(weight);
    }
  }
}

void experts(const ExpertsParams& p) {
  const int64_t width = p.down.cols;
  const int64_t hidden = p.a.cols;
  std::vector<double> activated(static_cast<size_t>(width));
  std::vector<double> sums(static_cast<size_t>(hidden));
  for (int64_t row = 0; row < p.a.rows; ++row) {
    std::ranges::fill(sums, 0);
    for (int64_t n = row * p.experts_per_row; n < (row + 1) * p.experts_per_row; ++n) {
      const int64_t expert = p.experts[n];
      for (int64_t j = 0; j < width; ++j) {
        const auto product = [&](int64_t of) {
          const double bias = p.gate_up_bias == nullptr ? 0 : double{p.gate_up_bias[of]};
          return dot(p.a, row, p.gate_up, of) + bias;
        };
        const double gate = product(expert * 2 * width + j);
        const double up = product(expert * 2 * width + width + j);
        activated[static_cast<size_t>(j)] = ref::activated(p.activation, gate, up);
      }
      for (int64_t i = 0; i < hidden; ++i) {
        double sum = p.down_bias == nullptr ? 0 : double{p.down_bias[expert * hidden + i]};
        for (int64_t j = 0; j < width; ++j) {
          sum += activated[static_cast<size_t>(j)] *
                 load(p.down.data, p.down.dtype, (expert * hidden + i) * p.down.row_stride + j);
        }
        sums[static_cast<size_t>(i)] += p.weights[n] * sum;
      }
    }
    for (int64_t i = 0; i < hidden; ++i) {
      float& out = p.out[row * hidden + i];
      out = static_cast<float>(sums[static_cast<size_t>(i)] + (p.accumulate ? double{out} : 0));
    }
  }
}

// For each row one expert at a time, by the operations of dense layers.
void float8_experts(const Float8ExpertsParams& p) {
  const int64_t width = p.down.cols;
  const int64_t hidden = p.a.cols;
  const auto part_of = [](const ConstFloat8Matrix& all, int64_t first, int64_t count) {
    return ConstFloat8Matrix{all.data + first * all.row_stride, all.scales + first, count, all.cols,
                             all.row_stride};
  };
  std::vector<float> activated(static_cast<size_t>(width));  // or of 16 bits
  std::vector<Float8> codes(static_cast<size_t>(width));
  std::vector<float> output(static_cast<size_t>(hidden));
  std::vector<double> sums(static_cast<size_t>(hidden));
  float scale = 0;
  const auto one_row = dense_matrix(static_cast<void*>(activated.data()), p.dtype, 1, width);
  const Float8Matrix quantized{codes.data(), &scale, 1, width, width};
  for (int64_t row = 0; row < p.a.rows; ++row) {
    std::ranges::fill(sums, 0);
    for (int64_t n = row * p.experts_per_row; n < (row + 1) * p.experts_per_row; ++n) {
      const int64_t expert = p.experts[n];
      float8_swiglu({.a = part_of(p.a, row, 1),
                     .gate_up = part_of(p.gate_up, expert * 2 * width, 2 * width),
                     .activation = p.activation,
                     .out = one_row});
      float8_quantize({.a = one_row, .out = quantized});
      float8_gemm({.a = quantized,
                   .b = part_of(p.down, expert * hidden, hidden),
                   .c = dense_matrix(output.data(), DType::kFloat32, 1, hidden)});
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += double{p.weights[n]} * output[i];
    }
    for (int64_t i = 0; i < hidden; ++i) {
      float& out = p.out[row * hidden + i];
      out = static_cast<float>(sums[static_cast<size_t>(i)] + (p.accumulate ? double{out} : 0));
    }
  }
}

}  // namespace millrace::kernels::ref
