// SPDX-License-Identifier: Apache-2.0
// Experts of 8-bit floats.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/api/experts.h"
#include "kernels/cuda/sm90/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/float8_mixture.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"
#include "tests/unit/kernels_cuda/mixture_shapes.h"

namespace millrace::kernels::cuda {
namespace {

using Shape = MixtureShape;

class Float8ExpertsTest : public GpuCase {
 protected:
  // Of the first `rows` rows, or of all.
  std::vector<float> computed_mixture(test::Float8Mixture& mixture, bool accumulate,
                                      int64_t rows = 0) {
    const auto& shape = mixture.shape;
    if (rows == 0) rows = shape.rows;
    const int64_t scratch_rows =
        expert_scratch_rows(rows, shape.num_experts, shape.experts_per_row, kExpertRowStep);
    const DeviceArray<Float8> a(mixture.a.codes), gate_up(mixture.gate_up.codes),
        down(mixture.down.codes);
    const DeviceArray<float> a_scales(mixture.a.scales), gate_up_scales(mixture.gate_up.scales),
        down_scales(mixture.down.scales), weights(mixture.weights);
    const DeviceArray<int32_t> experts_of_rows(mixture.experts);
    DeviceArray<uint16_t> gathered(scratch_rows * shape.hidden);
    DeviceArray<uint16_t> activated(scratch_rows * shape.width);
    DeviceArray<Float8> quantized(scratch_rows * shape.width);
    DeviceArray<float> row_scales(scratch_rows);
    DeviceArray<float> out(
        std::vector<float>(mixture.before.begin(), mixture.before.begin() + rows * shape.hidden));
    auto params = mixture.params(rows, DType::kBFloat16, out.data(), accumulate);
    params.a.data = a.data();
    params.a.scales = a_scales.data();
    params.gate_up = mixture.gate_up.view_of(gate_up.data(), gate_up_scales.data());
    params.down = mixture.down.view_of(down.data(), down_scales.data());
    params.experts = experts_of_rows.data();
    params.weights = weights.data();
    params.gathered = gathered.data();
    params.activated = activated.data();
    params.quantized = quantized.data();
    params.row_scales = row_scales.data();
    run([&](Context& context) { float8_experts(params, context); });
    EXPECT_TRUE(out.guards_intact() && gathered.guards_intact() && activated.guards_intact() &&
                quantized.guards_intact() && row_scales.guards_intact());
    return out.values();
  }

  // The tensor cores lose up to 2^-13 of the largest of a step's products (float8_case.h). So a few
  // in a hundred of the numbers between the products become another bfloat16, up to 2^-7 off. One
  // in ten of these becomes another code; if it is a row's largest number, the scale moves, and
  // with it one in ten of the row's codes. Another code is at most an eighth of a number off. If a
  // share p of the codes moves, that is 0.09 sqrt(p) of the sum in root mean square: 0.01 for p =
  // 1.2 %. Allowed is twice that. An expert's output is rounded to bfloat16, 2^-9 at most. One
  // wrong scale in 50 would be 0.05.
  void expect_mixture(const Shape& s, const std::vector<int32_t>& experts, bool accumulate) {
    SCOPED_TRACE(fmt::format("{} rows of {}, {} experts of {}, {} a row, accumulate {}", s.rows,
                             s.hidden, s.num_experts, s.width, s.experts_per_row, accumulate));
    test::Float8Mixture mixture({s.rows, s.hidden, s.width, s.num_experts, s.experts_per_row},
                                experts);
    const auto values = computed_mixture(mixture, accumulate);
    EXPECT_LT(test::relative_error(values, mixture.reference(DType::kBFloat16, accumulate)), 0.02);
    EXPECT_TRUE(test::bitwise_equal(computed_mixture(mixture, accumulate), values));
  }
};

TEST_F(Float8ExpertsTest, MatchTheReference) {
  for (const bool accumulate : {false, true}) {
    const Shape even{200, 64, 48, 6, 2};
    expect_mixture(even, spread(even, 6), accumulate);
    const Shape some_idle{70, 80, 144, 16, 3};
    expect_mixture(some_idle, spread(some_idle, 5), accumulate);
    const Shape one{1, 128, 64, 8, 8};
    expect_mixture(one, spread(one, 8), accumulate);
  }
  const Shape only_one{300, 64, 272, 1, 1};
  expect_mixture(only_one, std::vector<int32_t>(300, 0), true);
}

TEST_F(Float8ExpertsTest, MatchTheReferenceAtTheBordersOfTiles) {
  const auto experts = by_counts({0, 1, 127, 128, 129, 0, 257, 384, 2, 0});
  const auto rows = std::ssize(experts);
  for (const bool accumulate : {false, true}) {
    expect_mixture({rows, 80, 144, 10, 1}, experts, accumulate);
  }
  expect_mixture({rows, 256, 128, 10, 1}, experts, false);
  expect_mixture({rows, 528, 208, 10, 1}, experts, false);
  expect_mixture({rows, 272, 384, 10, 1}, experts, false);
}

TEST_F(Float8ExpertsTest, MatchTheReferenceWhereClustersTakeSeveralTiles) {
  const Shape shape{500, 144, 272, 128, 8};
  expect_mixture(shape, spread(shape, 128), false);
}

// Widths held in registers in two ways, and one that is read twice.
TEST_F(Float8ExpertsTest, MatchTheReferenceAtWidthsOfModels) {
  for (const int64_t width : {768, 4112, 16400}) {
    const Shape shape{9, 32, width, 2, 1};
    expect_mixture(shape, spread(shape, 2), false);
  }
}

TEST_F(Float8ExpertsTest, ARowsSumDoesNotDependOnTheRowsBesideIt) {
  const Shape s{1300, 144, 272, 16, 4};
  test::Float8Mixture mixture({s.rows, s.hidden, s.width, s.num_experts, s.experts_per_row},
                              spread(s, 16));
  for (const bool accumulate : {false, true}) {
    const auto all = computed_mixture(mixture, accumulate);
    for (const int64_t rows : {1, 7, 130, 900}) {
      const auto some = computed_mixture(mixture, accumulate, rows);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
    }
  }
}

TEST_F(Float8ExpertsTest, NoRowsAreNoWork) {
  test::Float8Mixture mixture({0, 64, 64, 4, 2}, {});
  run([&](Context& context) {
    float8_experts(mixture.params(0, DType::kBFloat16, nullptr, false), context);
  });
}

}  // namespace
}  // namespace millrace::kernels::cuda
