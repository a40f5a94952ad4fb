// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in 8-bit floats in host memory, and its expected result.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/api/experts.h"
#include "kernels/ref/operations.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/float8_case.h"

namespace millrace::test {

struct Float8MixtureShape {
  int64_t rows, hidden, width;
  int32_t num_experts, experts_per_row;
};

struct Float8Mixture {
  // `experts`: [rows, experts_per_row].
  Float8Mixture(const Float8MixtureShape& shape_in, std::vector<int32_t> experts_in,
                int64_t padding = 16)
      : shape(shape_in),
        experts(std::move(experts_in)),
        a(1, shape.rows, shape.hidden, padding),
        gate_up(2, shape.num_experts * 2 * shape.width, shape.hidden),
        down(3, shape.num_experts * shape.hidden, shape.width),
        before(random_normals(6, shape.rows * shape.hidden)) {
    for (size_t i = 0; i < experts.size(); ++i) weights.push_back(random_uniform(5, i));
    // No two rows and no two channels have equal scales, so that using the wrong one gives a large
    // error. Gates are around 2.
    for (size_t i = 0; i < a.scales.size(); ++i) {
      a.scales[i] *= std::sqrt(static_cast<float>(shape.hidden)) * (0.5F + random_uniform(7, i));
    }
    for (size_t i = 0; i < gate_up.scales.size(); ++i) {
      gate_up.scales[i] *= 1 + 2 * random_uniform(8, i);
    }
    for (size_t i = 0; i < down.scales.size(); ++i) down.scales[i] *= 0.5F + random_uniform(9, i);
  }

  // Parameters without scratch for the first `rows` rows. Operands stay where they are.
  kernels::Float8ExpertsParams params(int64_t rows, DType dtype, float* out, bool accumulate) {
    auto first_rows = a.view();
    first_rows.rows = rows;
    return {.a = first_rows,
            .num_experts = shape.num_experts,
            .experts_per_row = shape.experts_per_row,
            .experts = experts.data(),
            .weights = weights.data(),
            .gate_up = gate_up.view(),
            .down = down.view(),
            .dtype = dtype,
            .out = out,
            .accumulate = accumulate};
  }

  std::vector<float> reference(DType dtype, bool accumulate) {
    auto out = before;
    kernels::ref::float8_experts(params(shape.rows, dtype, out.data(), accumulate));
    return out;
  }

  Float8MixtureShape shape;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  Float8Rows a, gate_up, down;
  std::vector<float> before;  // contents of `out` before the call
};

// In root mean square.
inline double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace millrace::test
