// SPDX-License-Identifier: Apache-2.0
// Which experts each row chooses, and their weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/api/experts.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"
#include "tests/unit/kernels_cuda/mixture_shapes.h"

namespace millrace::kernels::cuda {
namespace {

using Shape = MixtureShape;

struct Choices {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

// RouteParams::correction, factor and bias.
struct Correction {
  std::vector<float> of_experts;
  float factor = 1;
  std::vector<float> bias;
};

class RouteTest : public GpuCase, public testing::WithParamInterface<DType> {
 protected:
  static std::vector<uint16_t> rows_of(const Shape& shape) {
    return test::narrow_bits(test::random_normals(1, shape.rows * (shape.hidden + kPadding)),
                             GetParam());
  }
  static ConstMatrix matrix(const Shape& shape, const void* data) {
    return {data, GetParam(), shape.rows, shape.hidden, shape.hidden + kPadding};
  }
  static RouteParams route_params(const Shape& shape, const ConstMatrix& a, const float* router,
                                  ExpertWeighting weighting, int32_t* experts, float* weights) {
    return {.a = a,
            .router = router,
            .num_experts = shape.num_experts,
            .experts_per_row = shape.experts_per_row,
            .weighting = weighting,
            .experts = experts,
            .weights = weights};
  }
  static Choices reference_choices(const Shape& shape, const std::vector<uint16_t>& a,
                                   const std::vector<float>& router, ExpertWeighting weighting,
                                   const Correction& correction = {}) {
    const auto count = static_cast<size_t>(shape.rows * shape.experts_per_row);
    Choices choices{std::vector<int32_t>(count), std::vector<float>(count)};
    auto params = route_params(shape, matrix(shape, a.data()), router.data(), weighting,
                               choices.experts.data(), choices.weights.data());
    if (!correction.of_experts.empty()) params.correction = correction.of_experts.data();
    if (!correction.bias.empty()) params.bias = correction.bias.data();
    params.factor = correction.factor;
    ref::route(params);
    return choices;
  }
  Choices computed_choices(const Shape& shape, const std::vector<uint16_t>& a,
                           const std::vector<float>& router, ExpertWeighting weighting,
                           const Correction& correction = {}) {
    const DeviceArray<uint16_t> device_a(a);
    const DeviceArray<float> device_router(router), of_experts(correction.of_experts),
        bias(correction.bias);
    DeviceArray<int32_t> experts(shape.rows * shape.experts_per_row);
    DeviceArray<float> weights(shape.rows * shape.experts_per_row);
    auto params = route_params(shape, matrix(shape, device_a.data()), device_router.data(),
                               weighting, experts.data(), weights.data());
    if (!correction.of_experts.empty()) params.correction = of_experts.data();
    if (!correction.bias.empty()) params.bias = bias.data();
    params.factor = correction.factor;
    run([&](Context& context) { route(params, context); });
    EXPECT_TRUE(experts.guards_intact());
    EXPECT_TRUE(weights.guards_intact());
    return {experts.values(), weights.values()};
  }
};
MR_INSTANTIATE_NARROW(RouteTest);

TEST_P(RouteTest, ChoosesAndWeighsAsTheReference) {
  for (const Shape& shape :
       {Shape{33, 72, 0, 9, 3}, Shape{5, 2048, 0, 128, 8}, Shape{7, 64, 0, 4, 4},
        Shape{3, 16, 0, 1, 1}, Shape{300, 256, 0, 8, 1}, Shape{9, 16384, 0, 40, 2}}) {
    const auto a = rows_of(shape);
    const auto router = test::random_normals(2, shape.num_experts * shape.hidden,
                                             2 / std::sqrt(static_cast<float>(shape.hidden)));
    for (const auto weighting : {ExpertWeighting::kSoftmax, ExpertWeighting::kChosenSoftmax,
                                 ExpertWeighting::kSigmoid, ExpertWeighting::kChosenSigmoid}) {
      SCOPED_TRACE(
          fmt::format("{} experts, weighting {}", shape.num_experts, static_cast<int>(weighting)));
      const auto expected = reference_choices(shape, a, router, weighting);
      const auto computed = computed_choices(shape, a, router, weighting);
      EXPECT_EQ(computed.experts, expected.experts);
      // Logits of about 2, summed in float32 in another order: off by 2^-24 sqrt(hidden) each, and
      // the weight by as much.
      const double tolerance = std::sqrt(static_cast<double>(shape.hidden)) * 1e-6;
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        ASSERT_NEAR(computed.weights[i], expected.weights[i], tolerance) << i;
      }
    }
  }
}

// GLM-4.5's correction decides which experts are chosen, and does not affect the weights.
TEST_P(RouteTest, ACorrectionIsOfTheChoiceAlone) {
  // The last one has rows of 32 kB, of which fewer than 8 fit into shared memory.
  for (const Shape& shape : {Shape{33, 72, 0, 9, 3}, Shape{5, 2048, 0, 160, 8},
                             Shape{7, 64, 0, 4, 4}, Shape{9, 16384, 0, 40, 2}}) {
    const auto a = rows_of(shape);
    const auto router = test::random_normals(2, shape.num_experts * shape.hidden,
                                             2 / std::sqrt(static_cast<float>(shape.hidden)));
    const Correction correction{test::random_normals(3, shape.num_experts, 0.5F), 1.75F};
    for (const auto weighting : {ExpertWeighting::kSigmoid, ExpertWeighting::kChosenSigmoid}) {
      SCOPED_TRACE(
          fmt::format("{} experts, weighting {}", shape.num_experts, static_cast<int>(weighting)));
      const auto expected = reference_choices(shape, a, router, weighting, correction);
      EXPECT_NE(expected.experts, reference_choices(shape, a, router, weighting).experts);
      const auto computed = computed_choices(shape, a, router, weighting, correction);
      EXPECT_EQ(computed.experts, expected.experts);
      // As above, times the factor.
      const double tolerance = std::sqrt(static_cast<double>(shape.hidden)) * 1.75e-6;
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        ASSERT_NEAR(computed.weights[i], expected.weights[i], tolerance) << i;
      }
    }
  }
}

TEST_P(RouteTest, AFactorIsOfAllWeights) {
  const Shape shape{33, 72, 0, 9, 3};
  const auto a = rows_of(shape);
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden, 0.25F);
  for (const auto weighting : {ExpertWeighting::kSoftmax, ExpertWeighting::kChosenSoftmax,
                               ExpertWeighting::kSigmoid, ExpertWeighting::kChosenSigmoid}) {
    SCOPED_TRACE(static_cast<int>(weighting));
    const auto plain = computed_choices(shape, a, router, weighting);
    const auto twice = computed_choices(shape, a, router, weighting, {.factor = 2});
    EXPECT_EQ(twice.experts, plain.experts);
    for (size_t i = 0; i < plain.weights.size(); ++i) {
      EXPECT_EQ(twice.weights[i], 2 * plain.weights[i]) << i;
    }
  }
}

// gpt-oss's bias is added to the logits, so it affects both choice and weights.
TEST_P(RouteTest, ABiasIsOfTheLogits) {
  for (const Shape& shape : {Shape{33, 72, 0, 9, 3}, Shape{5, 2880, 0, 128, 4},
                             Shape{7, 64, 0, 4, 4}, Shape{9, 16384, 0, 40, 2}}) {
    const auto a = rows_of(shape);
    const auto router = test::random_normals(2, shape.num_experts * shape.hidden,
                                             2 / std::sqrt(static_cast<float>(shape.hidden)));
    const Correction bias{.of_experts = {}, .bias = test::random_normals(3, shape.num_experts, 2)};
    for (const auto weighting : {ExpertWeighting::kSoftmax, ExpertWeighting::kChosenSoftmax,
                                 ExpertWeighting::kSigmoid, ExpertWeighting::kChosenSigmoid}) {
      SCOPED_TRACE(
          fmt::format("{} experts, weighting {}", shape.num_experts, static_cast<int>(weighting)));
      const auto expected = reference_choices(shape, a, router, weighting, bias);
      EXPECT_NE(expected.experts, reference_choices(shape, a, router, weighting).experts);
      const auto computed = computed_choices(shape, a, router, weighting, bias);
      EXPECT_EQ(computed.experts, expected.experts);
      // As without one.
      const double tolerance = std::sqrt(static_cast<double>(shape.hidden)) * 1e-6;
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        ASSERT_NEAR(computed.weights[i], expected.weights[i], tolerance) << i;
      }
    }
  }
}

// Sigmoids that are 0 in float32: nothing is divided by their sum, and the correction still
// chooses.
TEST_P(RouteTest, SigmoidsThatVanishGiveWeightsOfZero) {
  const Shape shape{2, 16, 0, 6, 2};
  const std::vector<float> ones(static_cast<size_t>(shape.rows * (shape.hidden + kPadding)), 1);
  const std::vector<float> router(static_cast<size_t>(shape.num_experts * shape.hidden), -20.0F);
  const auto computed =
      computed_choices(shape, test::narrow_bits(ones, GetParam()), router,
                       ExpertWeighting::kChosenSigmoid, {.of_experts = {0, 1, 0, 0, 2, 0}});
  EXPECT_EQ(computed.experts, (std::vector{4, 1, 4, 1}));
  for (const float weight : computed.weights) EXPECT_EQ(weight, 0.0F);
}

TEST_P(RouteTest, OfEqualLogitsTakesTheLowerIndex) {
  const Shape shape{4, 16, 0, 70, 3};
  const std::vector<float> router(static_cast<size_t>(shape.num_experts * shape.hidden), 0.5F);
  const auto computed =
      computed_choices(shape, rows_of(shape), router, ExpertWeighting::kChosenSoftmax);
  for (size_t i = 0; i < computed.experts.size(); ++i) {
    EXPECT_EQ(computed.experts[i], static_cast<int32_t>(i % 3));
    EXPECT_EQ(computed.weights[i], 1.0F / 3);
  }
}

TEST_P(RouteTest, ARowsChoiceDoesNotDependOnTheRowsBesideIt) {
  const Shape shape{200, 304, 0, 16, 4};
  const auto a = rows_of(shape);
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden, 0.1F);
  const auto all = computed_choices(shape, a, router, ExpertWeighting::kSoftmax);
  for (const int64_t row : {0, 77, 199}) {
    Shape one_row = shape;
    one_row.rows = 1;
    const auto first = a.begin() + row * (shape.hidden + kPadding);
    const auto one = computed_choices(one_row, {first, first + shape.hidden + kPadding}, router,
                                      ExpertWeighting::kSoftmax);
    for (size_t n = 0; n < 4; ++n) {
      EXPECT_EQ(one.experts[n], all.experts[static_cast<size_t>(row * 4) + n]);
      EXPECT_EQ(one.weights[n], all.weights[static_cast<size_t>(row * 4) + n]);
    }
  }
}

TEST_P(RouteTest, LogitsThatAreNoNumbersChooseExpertsThatExist) {
  const Shape shape{2, 16, 0, 5, 3};
  auto a = rows_of(shape);
  const auto nan = std::vector<float>{std::numeric_limits<float>::quiet_NaN()};
  a[3] = test::narrow_bits(nan, GetParam()).front();
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden);
  const auto computed = computed_choices(shape, a, router, ExpertWeighting::kSoftmax);
  EXPECT_EQ(std::vector(computed.experts.begin(), computed.experts.begin() + 3),
            (std::vector{0, 1, 2}));
  EXPECT_TRUE(std::isnan(computed.weights[0]));
  EXPECT_FALSE(std::isnan(computed.weights[3]));
}

}  // namespace
}  // namespace millrace::kernels::cuda
