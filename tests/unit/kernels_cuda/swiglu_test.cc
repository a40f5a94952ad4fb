// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/swiglu.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/naive_operations.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

using test::as_good_as_naive;
using test::float32_rounding;

struct Shape {
  int64_t rows, columns, depth;
  int64_t padding =
      0;  // elements between the rows of a, of the weight (twice), of out (three times)
};

using Kind = Activation::Kind;
constexpr std::array kKinds = {Kind::kSilu, Kind::kGeluTanh};

struct Problem {
  Problem(const Shape& shape_in, DType dtype_in, Kind kind_in = Kind::kSilu)
      : shape(shape_in),
        dtype(dtype_in),
        kind(kind_in),
        a_stride(shape.depth + shape.padding),
        weight_stride(shape.depth + 2 * shape.padding),
        out_stride(shape.columns + 3 * shape.padding),
        a(test::narrow_bits(test::random_normals(1, shape.rows * a_stride), dtype)),
        // Gates of about 2, which cover all slopes of SiLU and GELU.
        gate_up(
            test::narrow_bits(test::random_normals(2, 2 * shape.columns * weight_stride,
                                                   2 / std::sqrt(static_cast<float>(shape.depth))),
                              dtype)) {}

  SwigluParams params(const void* a_data, const void* weight, void* out, DType out_dtype) const {
    return {.a = {a_data, dtype, shape.rows, shape.depth, a_stride},
            .gate_up = {weight, dtype, 2 * shape.columns, shape.depth, weight_stride},
            .activation = {.kind = kind},
            .out = {out, out_dtype, shape.rows, shape.columns, out_stride}};
  }

  // The gaps between the rows stay -1.
  std::vector<float> reference() const {
    std::vector<float> out(static_cast<size_t>(shape.rows * out_stride), -1);
    ref::swiglu(params(a.data(), gate_up.data(), out.data(), DType::kFloat32));
    return out;
  }
  std::vector<float> naive_result() const {
    std::vector<float> products(static_cast<size_t>(2 * shape.rows * shape.columns));
    std::vector<float> out(static_cast<size_t>(shape.rows * out_stride), -1);
    const auto p = params(a.data(), gate_up.data(), out.data(), DType::kFloat32);
    naive::gemm({.a = p.a,
                 .b = p.gate_up,
                 .c = dense_matrix(products.data(), DType::kFloat32, p.a.rows, p.gate_up.rows)});
    naive::activate({.gate_up = products.data(), .activation = p.activation, .out = p.out});
    return test::widen_bits(test::narrow_bits(out, dtype), dtype);
  }

  Shape shape;
  DType dtype;
  Kind kind;
  int64_t a_stride, weight_stride, out_stride;
  std::vector<uint16_t> a, gate_up;
};

class SwigluTest : public GpuCase {
 protected:
  std::vector<uint16_t> compute(const Problem& problem) {
    const DeviceArray<uint16_t> a(problem.a), gate_up(problem.gate_up);
    const std::vector<float> blank(static_cast<size_t>(problem.shape.rows * problem.out_stride),
                                   -1);
    DeviceArray<uint16_t> out(test::narrow_bits(blank, problem.dtype));
    run([&](Context& context) {
      swiglu(problem.params(a.data(), gate_up.data(), out.data(), problem.dtype), context);
    });
    EXPECT_TRUE(out.guards_intact());
    return out.values();
  }

  void expect_as_good_as_naive(const Shape& shape) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const Kind kind : kKinds) expect_as_good_as_naive(Problem(shape, dtype, kind));
    }
  }
  void expect_as_good_as_naive(const Problem& problem) {
    const Shape& shape = problem.shape;
    SCOPED_TRACE(fmt::format("{} x {} x {}, {}, {}", shape.rows, shape.columns, shape.depth,
                             dtype_name(problem.dtype),
                             problem.kind == Kind::kSilu ? "SwiGLU" : "GeGLU"));
    const auto reference = problem.reference();
    // As in the matrix product's test: the tensor cores keep a few bits less of a partial sum.
    const double atol = float32_rounding(reference) * std::sqrt(static_cast<double>(shape.depth));
    EXPECT_TRUE(as_good_as_naive(test::widen_bits(compute(problem), problem.dtype),
                                 problem.naive_result(), reference, atol));
  }
};

TEST_F(SwigluTest, MatchesReferenceAtTheBordersOfTiles) {
  for (const Shape& shape :
       {Shape{1, 8, 8}, Shape{64, 128, 64}, Shape{65, 136, 72}, Shape{128, 120, 256},
        Shape{129, 64, 320}, Shape{255, 128, 264}, Shape{257, 264, 520}}) {
    expect_as_good_as_naive(shape);
  }
}

TEST_F(SwigluTest, MatchesReferenceWhereClustersTakeSeveralTiles) {
  // 80 tiles; 90 tiles in two groups of rows, of which the second is short.
  expect_as_good_as_naive({1100, 2000, 64});
  expect_as_good_as_naive({2200, 1272, 72});
}

TEST_F(SwigluTest, ReadsAndWritesRowsThatAreApart) {
  expect_as_good_as_naive({70, 72, 64, /*padding=*/8});
  expect_as_good_as_naive({300, 136, 200, /*padding=*/64});
}

TEST_F(SwigluTest, ARowIsTheSameWhateverRowsAreComputedWithIt) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Problem all({1100, 1000, 136}, dtype);
    const auto expected = compute(all);
    for (const int64_t rows : {1, 100, 300}) {
      Problem some = all;
      some.shape.rows = rows;
      const auto values = compute(some);
      EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin())) << rows;
    }
  }
}

TEST_F(SwigluTest, TheSameTwiceGivesTheSameBits) {
  const Problem problem({1100, 2000, 1024}, DType::kBFloat16);
  EXPECT_EQ(compute(problem), compute(problem));
}

// Gates and ups of one row; the weight is the identity.
TEST_F(SwigluTest, GatesOfAnySizeGiveZeroOrTheProduct) {
  const std::vector<float> row = {-200, 200, -88, 88, 0, -0.0F, -1e30F, 1e30F,
                                  1,    1,   1,   1,  1, 1,     1,      1};
  std::vector<float> identity(16 * 16);
  for (size_t i = 0; i < 16; ++i) identity[i * 17] = 1;
  for (const Kind kind : kKinds) {
    Problem problem({1, 8, 16}, DType::kBFloat16, kind);
    problem.a = test::narrow_bits(row, DType::kBFloat16);
    problem.gate_up = test::narrow_bits(identity, DType::kBFloat16);
    const auto values = test::widen_bits(compute(problem), DType::kBFloat16);
    EXPECT_EQ(values[0], 0);
    EXPECT_EQ(values[1], 200);
    EXPECT_NEAR(values[2], 0, 1e-30);
    EXPECT_EQ(values[3], 88);
    EXPECT_EQ(values[4], 0);
    EXPECT_EQ(values[6], 0);
    EXPECT_EQ(values[7], to_float(to_bfloat16(1e30F)));
  }
}

TEST_F(SwigluTest, BeyondFloat16IsItsLargestNumberAndNaNStaysNaN) {
  Problem problem({1, 8, 16}, DType::kFloat16);
  const std::vector<float> row = {300, 300,  60000, 256, 60000, -200,  65504, 1,
                                  300, -300, 60000, 256, 1,     60000, 1,     2};
  problem.a = test::narrow_bits(row, DType::kFloat16);
  std::vector<float> weight(16 * 16);
  for (size_t i = 0; i < 16; ++i) weight[i * 17] = 1;
  problem.gate_up = test::narrow_bits(weight, DType::kFloat16);
  const auto values = test::widen_bits(compute(problem), DType::kFloat16);
  EXPECT_EQ(values[0], 65504);
  EXPECT_EQ(values[1], -65504);
  EXPECT_EQ(values[2], 65504);
  EXPECT_EQ(values[3], 65504);
  EXPECT_EQ(values[4], 60000);
  EXPECT_EQ(values[5], 0);
  EXPECT_EQ(values[6], 65504);

  problem.a = test::narrow_bits(std::vector<float>(16, std::nanf("")), DType::kFloat16);
  for (const float value : test::widen_bits(compute(problem), DType::kFloat16))
    EXPECT_TRUE(std::isnan(value));
}

TEST_F(SwigluTest, NoRowsAreNoWork) {
  run([](Context& context) {
    swiglu({.a = {nullptr, DType::kBFloat16, 0, 64, 64},
            .gate_up = {nullptr, DType::kBFloat16, 128, 64, 64},
            .out = {nullptr, DType::kBFloat16, 0, 64, 64}},
           context);
  });
}

}  // namespace
}  // namespace millrace::kernels::cuda
