#include "kernels/api/experts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/sm90/experts/experts.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

struct Shape {
  int64_t rows, hidden, width;
  int32_t num_experts, experts_per_row;
};

struct Choices {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

// Rows of a are 8 elements apart.
constexpr int64_t kPadding = 8;

class ExpertsTest : public GpuCase, public testing::WithParamInterface<DType> {
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
                                   const std::vector<float>& router, ExpertWeighting weighting) {
    const auto count = static_cast<size_t>(shape.rows * shape.experts_per_row);
    Choices choices{std::vector<int32_t>(count), std::vector<float>(count)};
    ref::route(route_params(shape, matrix(shape, a.data()), router.data(), weighting,
                            choices.experts.data(), choices.weights.data()));
    return choices;
  }
  Choices computed_choices(const Shape& shape, const std::vector<uint16_t>& a,
                           const std::vector<float>& router, ExpertWeighting weighting) {
    const DeviceArray<uint16_t> device_a(a);
    const DeviceArray<float> device_router(router);
    DeviceArray<int32_t> experts(shape.rows * shape.experts_per_row);
    DeviceArray<float> weights(shape.rows * shape.experts_per_row);
    run([&](Context& context) {
      route(route_params(shape, matrix(shape, device_a.data()), device_router.data(), weighting,
                         experts.data(), weights.data()),
            context);
    });
    EXPECT_TRUE(experts.guards_intact());
    EXPECT_TRUE(weights.guards_intact());
    return {experts.values(), weights.values()};
  }

  // The mixture's sum, of the GPU and of the reference.
  void expect_mixture(const Shape& shape, const std::vector<int32_t>& experts, bool accumulate) {
    SCOPED_TRACE(fmt::format("{} rows, {} experts, {} a row", shape.rows, shape.num_experts,
                             shape.experts_per_row));
    const auto a = rows_of(shape);
    const auto gate_up = test::narrow_bits(
        test::random_normals(3, shape.num_experts * 2 * shape.width * shape.hidden,
                             1 / std::sqrt(static_cast<float>(shape.hidden))),
        GetParam());
    const auto down =
        test::narrow_bits(test::random_normals(4, shape.num_experts * shape.hidden * shape.width,
                                               1 / std::sqrt(static_cast<float>(shape.width))),
                          GetParam());
    std::vector<float> weights(experts.size());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = test::random_uniform(5, i);
    auto expected = test::random_normals(6, shape.rows * shape.hidden);
    const auto before = expected;
    const auto params = [&](const void* rows, const void* gates, const void* downs,
                            const int32_t* chosen, const float* chosen_weights, float* out) {
      return ExpertsParams{
          .a = matrix(shape, rows),
          .num_experts = shape.num_experts,
          .experts_per_row = shape.experts_per_row,
          .experts = chosen,
          .weights = chosen_weights,
          .gate_up =
              dense_matrix(gates, GetParam(), shape.num_experts * 2 * shape.width, shape.hidden),
          .down = dense_matrix(downs, GetParam(), shape.num_experts * shape.hidden, shape.width),
          .out = out,
          .accumulate = accumulate};
    };
    ref::experts(params(a.data(), gate_up.data(), down.data(), experts.data(), weights.data(),
                        expected.data()));

    const DeviceArray<uint16_t> device_a(a), device_gate_up(gate_up), device_down(down);
    const DeviceArray<int32_t> device_experts(experts);
    const DeviceArray<float> device_weights(weights);
    DeviceArray<uint16_t> gathered(shape.rows * shape.hidden), activated(shape.rows * shape.width);
    DeviceArray<float> outputs(shape.rows * shape.hidden), out(before);
    auto device_params = params(device_a.data(), device_gate_up.data(), device_down.data(),
                                device_experts.data(), device_weights.data(), out.data());
    device_params.gathered = gathered.data();
    device_params.activated = activated.data();
    device_params.outputs = outputs.data();
    Gemm gemm;
    Experts mixture(gemm);
    run([&](Context& context) { mixture.run(device_params, context); });
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(gathered.guards_intact());
    EXPECT_TRUE(activated.guards_intact());
    EXPECT_TRUE(outputs.guards_intact());
    const auto values = out.values();
    // What SwiGLU leaves is rounded to 16 bits, 2^-9 or 2^-12 of a value of about 1; a down product
    // sums `width` of them with weights of 1 / sqrt(width), and weights below 1 sum the experts: an
    // error of about 2^-9 sqrt(experts), of which six deviations are allowed.
    const double rounding = GetParam() == DType::kBFloat16 ? 1.0 / 512 : 1.0 / 4096;
    const double tolerance = 6 * rounding * std::sqrt(static_cast<double>(shape.experts_per_row));
    double largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(values[i])) << i;
      largest = std::max(largest, std::abs(static_cast<double>(values[i]) - expected[i]));
    }
    EXPECT_LE(largest, tolerance);

    DeviceArray<float> again(before);
    device_params.out = again.data();
    run([&](Context& context) { mixture.run(device_params, context); });
    EXPECT_EQ(again.values(), values);
  }
};
MR_INSTANTIATE_NARROW(ExpertsTest);

TEST_P(ExpertsTest, ChoosesAndWeighsAsTheReference) {
  for (const Shape& shape :
       {Shape{33, 72, 0, 9, 3}, Shape{5, 2048, 0, 128, 8}, Shape{7, 64, 0, 4, 4},
        Shape{3, 16, 0, 1, 1}, Shape{300, 256, 0, 8, 1}, Shape{9, 16384, 0, 40, 2}}) {
    const auto a = rows_of(shape);
    const auto router = test::random_normals(2, shape.num_experts * shape.hidden,
                                             2 / std::sqrt(static_cast<float>(shape.hidden)));
    for (const auto weighting :
         {ExpertWeighting::kSoftmax, ExpertWeighting::kChosenSoftmax, ExpertWeighting::kSigmoid}) {
      SCOPED_TRACE(
          fmt::format("{} experts, weighting {}", shape.num_experts, static_cast<int>(weighting)));
      const auto expected = reference_choices(shape, a, router, weighting);
      const auto computed = computed_choices(shape, a, router, weighting);
      EXPECT_EQ(computed.experts, expected.experts);
      // Logits of about 2, summed in float32 in another order: 2^-24 sqrt(hidden) of each, and as
      // much of the weight.
      const double tolerance = std::sqrt(static_cast<double>(shape.hidden)) * 1e-6;
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        ASSERT_NEAR(computed.weights[i], expected.weights[i], tolerance) << i;
      }
    }
  }
}

TEST_P(ExpertsTest, OfEqualLogitsTakesTheLowerIndex) {
  const Shape shape{4, 16, 0, 70, 3};
  const std::vector<float> router(static_cast<size_t>(shape.num_experts * shape.hidden), 0.5F);
  const auto computed =
      computed_choices(shape, rows_of(shape), router, ExpertWeighting::kChosenSoftmax);
  for (size_t i = 0; i < computed.experts.size(); ++i) {
    EXPECT_EQ(computed.experts[i], static_cast<int32_t>(i % 3));
    EXPECT_EQ(computed.weights[i], 1.0F / 3);
  }
}

TEST_P(ExpertsTest, ARowsChoiceDoesNotDependOnTheRowsBesideIt) {
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

TEST_P(ExpertsTest, LogitsThatAreNoNumbersChooseExpertsThatExist) {
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

// Experts of a row: the first ones from a start that moves on, so that some are nobody's.
std::vector<int32_t> spread(const Shape& shape, int32_t used) {
  std::vector<int32_t> experts;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int32_t n = 0; n < shape.experts_per_row; ++n) {
      experts.push_back(static_cast<int32_t>((row * row + n) % used));
    }
  }
  return experts;
}

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

// More choices than a thread block sorts at a time.
TEST_P(ExpertsTest, AllRowsMayChooseOneExpert) {
  const Shape shape{1500, 64, 64, 5, 1};
  expect_mixture(shape, std::vector<int32_t>(1500, 3), false);
}

}  // namespace
}  // namespace millrace::kernels::cuda
