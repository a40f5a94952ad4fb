// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/experts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/naive_operations.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"
#include "tests/unit/kernels_cuda/mixture_shapes.h"

namespace millrace::kernels::cuda {
namespace {

using test::as_good_as_naive;
using test::float32_rounding;
using Shape = MixtureShape;

// The operands of a mixture, in host memory.
struct Mixture {
  Mixture(const Shape& shape_in, DType dtype_in, std::vector<int32_t> experts_in)
      : shape(shape_in),
        dtype(dtype_in),
        experts(std::move(experts_in)),
        a(test::narrow_bits(test::random_normals(1, shape.rows * (shape.hidden + kPadding)),
                            dtype)),
        gate_up(test::narrow_bits(
            test::random_normals(3, shape.num_experts * 2 * shape.width * shape.hidden,
                                 1 / std::sqrt(static_cast<float>(shape.hidden))),
            dtype)),
        down(test::narrow_bits(
            test::random_normals(4, shape.num_experts * shape.hidden * shape.width,
                                 1 / std::sqrt(static_cast<float>(shape.width))),
            dtype)),
        before(test::random_normals(6, shape.rows * shape.hidden)) {
    for (size_t i = 0; i < experts.size(); ++i) weights.push_back(test::random_uniform(5, i));
  }

  // Biases as in gpt-oss. Only one of its tensor-parallel ranks has those of the second product.
  void add_biases(bool of_down) {
    gate_up_bias = test::random_normals(7, shape.num_experts * 2 * shape.width);
    if (of_down) down_bias = test::random_normals(8, shape.num_experts * shape.hidden);
    activation = {Activation::Kind::kClamped, 1.702F, 1.5F};
  }

  // Without biases.
  ExpertsParams params(int64_t rows, const void* a_data, const void* gate_up_data,
                       const void* down_data, const int32_t* chosen, const float* chosen_weights,
                       float* out, bool accumulate) const {
    return {.a = {a_data, dtype, rows, shape.hidden, shape.hidden + kPadding},
            .num_experts = shape.num_experts,
            .experts_per_row = shape.experts_per_row,
            .experts = chosen,
            .weights = chosen_weights,
            .gate_up = dense_matrix(gate_up_data, dtype, shape.num_experts * 2 * shape.width,
                                    shape.hidden),
            .down = dense_matrix(down_data, dtype, shape.num_experts * shape.hidden, shape.width),
            .activation = activation,
            .out = out,
            .accumulate = accumulate};
  }

  std::vector<float> reference(bool accumulate) const {
    auto out = before;
    auto all = params(shape.rows, a.data(), gate_up.data(), down.data(), experts.data(),
                      weights.data(), out.data(), accumulate);
    all.gate_up_bias = bias_of(gate_up_bias, 0, 0);
    all.down_bias = bias_of(down_bias, 0, 0);
    ref::experts(all);
    return out;
  }

  // One row and one choice at a time, rounded where the products are.
  std::vector<float> naive_result(bool accumulate) const {
    auto out = before;
    if (!accumulate) std::ranges::fill(out, 0.0F);
    std::vector<float> products(static_cast<size_t>(2 * shape.width));
    std::vector<float> activated(static_cast<size_t>(shape.width));
    std::vector<float> result(static_cast<size_t>(shape.hidden));
    const auto part_of = [&](const std::vector<uint16_t>& stacked, int64_t part, int64_t rows,
                             int64_t cols) {
      const void* first = stacked.data() + part * rows * cols;
      return dense_matrix(first, dtype, rows, cols);
    };
    const auto row_of = [](std::vector<float>& values) {
      return dense_matrix(values.data(), DType::kFloat32, 1, std::ssize(values));
    };
    for (size_t i = 0; i < experts.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / shape.experts_per_row;
      const void* of_row = a.data() + row * (shape.hidden + kPadding);
      naive::gemm({.a = dense_matrix(of_row, dtype, 1, shape.hidden),
                   .b = part_of(gate_up, experts[i], 2 * shape.width, shape.hidden),
                   .bias = bias_of(gate_up_bias, experts[i], 2 * shape.width),
                   .c = row_of(products)});
      naive::activate(
          {.gate_up = products.data(), .activation = activation, .out = row_of(activated)});
      const auto narrow = test::narrow_bits(activated, dtype);
      naive::gemm(
          {.a = dense_matrix(static_cast<const void*>(narrow.data()), dtype, 1, shape.width),
           .b = part_of(down, experts[i], shape.hidden, shape.width),
           .bias = bias_of(down_bias, experts[i], shape.hidden),
           .c = row_of(result)});
      result = test::widen_bits(test::narrow_bits(result, dtype), dtype);
      for (int64_t c = 0; c < shape.hidden; ++c) {
        out[static_cast<size_t>(row * shape.hidden + c)] +=
            weights[i] * result[static_cast<size_t>(c)];
      }
    }
    return out;
  }

  // The biases of an expert; null if there are none.
  static const float* bias_of(const std::vector<float>& biases, int64_t expert, int64_t count) {
    return biases.empty() ? nullptr : biases.data() + expert * count;
  }

  Shape shape;
  DType dtype;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<uint16_t> a, gate_up, down;
  std::vector<float> gate_up_bias, down_bias;  // or empty
  Activation activation;
  std::vector<float> before;  // in `out`
};

class ExpertsTest : public GpuCase, public testing::WithParamInterface<DType> {
 protected:
  // Of the first `rows` rows, or of all.
  std::vector<float> computed_mixture(const Mixture& mixture, bool accumulate, int64_t rows = 0) {
    Shape shape = mixture.shape;
    if (rows > 0) shape.rows = rows;
    const int64_t scratch_rows =
        expert_scratch_rows(shape.rows, shape.num_experts, shape.experts_per_row, kExpertRowStep);
    const DeviceArray<uint16_t> a(mixture.a), gate_up(mixture.gate_up), down(mixture.down);
    const DeviceArray<int32_t> experts_of_rows(mixture.experts);
    const DeviceArray<float> weights(mixture.weights), gate_up_bias(mixture.gate_up_bias),
        down_bias(mixture.down_bias);
    DeviceArray<uint16_t> gathered(scratch_rows * shape.hidden);
    DeviceArray<uint16_t> activated(scratch_rows * shape.width);
    DeviceArray<float> out(std::vector<float>(mixture.before.begin(),
                                              mixture.before.begin() + shape.rows * shape.hidden));
    auto params = mixture.params(shape.rows, a.data(), gate_up.data(), down.data(),
                                 experts_of_rows.data(), weights.data(), out.data(), accumulate);
    if (!mixture.gate_up_bias.empty()) params.gate_up_bias = gate_up_bias.data();
    if (!mixture.down_bias.empty()) params.down_bias = down_bias.data();
    params.gathered = gathered.data();
    params.activated = activated.data();
    run([&](Context& context) { experts(params, context); });
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(gathered.guards_intact());
    EXPECT_TRUE(activated.guards_intact());
    return out.values();
  }

  // The mixture's sum on the GPU must be the reference's.
  void expect_mixture(const Shape& shape, const std::vector<int32_t>& experts, bool accumulate) {
    SCOPED_TRACE(fmt::format("{} rows of {}, {} experts of {}, {} a row, accumulate {}", shape.rows,
                             shape.hidden, shape.num_experts, shape.width, shape.experts_per_row,
                             accumulate));
    expect_mixture(Mixture(shape, GetParam(), experts), accumulate);
  }
  void expect_mixture(const Mixture& mixture, bool accumulate) {
    const Shape& shape = mixture.shape;
    const auto expected = mixture.reference(accumulate);
    const auto values = computed_mixture(mixture, accumulate);
    // As in the matrix product's test: the tensor cores keep a few bits less of a partial sum.
    const double atol = float32_rounding(expected) *
                        std::sqrt(static_cast<double>(std::max(shape.hidden, shape.width)));
    EXPECT_TRUE(as_good_as_naive(values, mixture.naive_result(accumulate), expected, atol));
    EXPECT_EQ(computed_mixture(mixture, accumulate), values);
  }
};
MR_INSTANTIATE_NARROW(ExpertsTest);

TEST_P(ExpertsTest, MixturesMatchTheReference) {
  for (const bool accumulate : {false, true}) {
    const Shape even{200, 64, 48, 6, 2};
    expect_mixture(even, spread(even, 6), accumulate);
    const Shape some_idle{70, 72, 136, 16, 3};
    expect_mixture(some_idle, spread(some_idle, 5), accumulate);
    const Shape all{33, 64, 24, 4, 4};
    expect_mixture(all, spread(all, 4), accumulate);
    const Shape one{1, 128, 64, 8, 8};
    expect_mixture(one, spread(one, 8), accumulate);
  }
}

// More choices than a thread block sorts at a time, and row tiles in several groups.
TEST_P(ExpertsTest, AllRowsMayChooseOneExpert) {
  const Shape shape{1500, 64, 64, 5, 1};
  expect_mixture(shape, std::vector<int32_t>(1500, 3), false);
  const Shape many_tiles{2600, 320, 136, 3, 1};
  expect_mixture(many_tiles, std::vector<int32_t>(2600, 1), true);
  const Shape only_one{300, 64, 264, 1, 1};
  expect_mixture(only_one, std::vector<int32_t>(300, 0), false);
}

TEST_P(ExpertsTest, MatchTheReferenceAtTheBordersOfTiles) {
  const auto experts = by_counts({0, 1, 127, 128, 129, 0, 257, 384, 2, 0});
  const auto rows = std::ssize(experts);
  for (const bool accumulate : {false, true}) {
    expect_mixture({rows, 72, 136, 10, 1}, experts, accumulate);
  }
  // One, two and three column tiles of both products; the last one is whole or partial.
  expect_mixture({rows, 256, 128, 10, 1}, experts, false);
  expect_mixture({rows, 520, 200, 10, 1}, experts, false);
  expect_mixture({rows, 264, 384, 10, 1}, experts, false);
}

TEST_P(ExpertsTest, MatchTheReferenceAtWidthsOfModels) {
  const Shape half{150, 520, 384, 5, 2};
  expect_mixture(half, spread(half, 5), false);
  const Shape whole{150, 264, 768, 4, 2};
  expect_mixture(whole, spread(whole, 4), true);
  const Shape narrow{150, 264, 96, 4, 3};
  expect_mixture(narrow, spread(narrow, 4), false);
}

// Several tiles a cluster, and pairs of row tiles alternating with single ones. With squares of
// rows, some of the 128 experts occur often and most occur seldom.
TEST_P(ExpertsTest, MatchTheReferenceWhereClustersTakeSeveralTiles) {
  const Shape shape{500, 136, 264, 128, 8};
  expect_mixture(shape, spread(shape, 128), false);
}

TEST_P(ExpertsTest, ARowsSumDoesNotDependOnTheRowsBesideIt) {
  const Shape shape{1300, 136, 264, 16, 4};
  const Mixture mixture(shape, GetParam(), spread(shape, 16));
  for (const bool accumulate : {false, true}) {
    const auto all = computed_mixture(mixture, accumulate);
    for (const int64_t rows : {1, 7, 130, 900}) {
      const auto some = computed_mixture(mixture, accumulate, rows);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
    }
  }
}

// Whole and partial column tiles, of one expert and of several. Every expert has different biases.
TEST_P(ExpertsTest, BiasesAndAClampMatchTheReference) {
  const auto borders = by_counts({0, 1, 127, 128, 129, 0, 257, 384, 2, 0});
  const auto num_borders = std::ssize(borders);
  const std::vector<std::pair<Shape, std::vector<int32_t>>> cases = {
      {{200, 64, 48, 6, 2}, spread({200, 64, 48, 6, 2}, 6)},
      {{70, 72, 136, 16, 3}, spread({70, 72, 136, 16, 3}, 5)},
      {{1, 128, 64, 8, 8}, spread({1, 128, 64, 8, 8}, 8)},
      {{num_borders, 256, 128, 10, 1}, borders},
      {{num_borders, 520, 200, 10, 1}, borders},
      {{num_borders, 264, 384, 10, 1}, borders},
      {{500, 136, 264, 128, 8}, spread({500, 136, 264, 128, 8}, 128)}};
  for (const auto& [shape, experts] : cases) {
    for (const bool of_down : {false, true}) {
      SCOPED_TRACE(fmt::format("{} rows of {}, {} experts of {}, biases of down {}", shape.rows,
                               shape.hidden, shape.num_experts, shape.width, of_down));
      Mixture mixture(shape, GetParam(), experts);
      mixture.add_biases(of_down);
      expect_mixture(mixture, /*accumulate=*/of_down);
      mixture.activation = {};  // and under SiLU
      expect_mixture(mixture, /*accumulate=*/!of_down);
    }
  }
}

TEST_P(ExpertsTest, ARowsSumWithBiasesDoesNotDependOnTheRowsBesideIt) {
  const Shape shape{1300, 136, 264, 16, 4};
  Mixture mixture(shape, GetParam(), spread(shape, 16));
  mixture.add_biases(/*of_down=*/true);
  const auto all = computed_mixture(mixture, /*accumulate=*/false);
  for (const int64_t rows : {1, 130, 900}) {
    const auto some = computed_mixture(mixture, /*accumulate=*/false, rows);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
  }
}

TEST_P(ExpertsTest, NoRowsAreNoWork) {
  const Shape shape{0, 64, 64, 4, 2};
  const Mixture mixture(shape, GetParam(), {});
  run([&](Context& context) {
    experts(mixture.params(0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, false),
            context);
  });
}

}  // namespace
}  // namespace millrace::kernels::cuda
