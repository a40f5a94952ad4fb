// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/naive_operations.h"

namespace millrace::kernels {
namespace {

using cpu::Context;
using cpu::Gemm;
using test::as_good_as_naive;
using test::float32_rounding;
using test::GuardedBuffer;

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
};

struct Options {
  bool bias = false;
  bool accumulate = false;
  int64_t padding = 0;  // elements between the rows of a, b (twice) and c (three times)
};

// Operands of one product. Values are rounded to bfloat16 for both dtypes, so that one float32 copy
// serves the references of both.
struct Problem {
  Problem(Shape shape_in, Options options_in)
      : shape(shape_in),
        options(options_in),
        a_stride(shape.k + options.padding),
        b_stride(shape.k + 2 * options.padding),
        c_stride(shape.n + 3 * options.padding),
        a_bf16(test::narrow(test::random_normals(1, shape.m * a_stride))),
        b_bf16(test::narrow(test::random_normals(2, shape.n * b_stride))),
        a(test::widen(a_bf16)),
        b(test::widen(b_bf16)),
        bias(test::random_normals(3, shape.n)),
        c(test::random_normals(4, shape.m * c_stride)) {}

  GemmParams params(DType dtype, float* out) const {
    const bool f32 = dtype == DType::kFloat32;
    return {.a = {f32 ? static_cast<const void*>(a.data()) : a_bf16.data(), dtype, shape.m, shape.k,
                  a_stride},
            .b = {f32 ? static_cast<const void*>(b.data()) : b_bf16.data(), dtype, shape.n, shape.k,
                  b_stride},
            .bias = options.bias ? bias.data() : nullptr,
            .c = {out, DType::kFloat32, shape.m, shape.n, c_stride},
            .accumulate = options.accumulate};
  }

  std::vector<float> reference() const {
    std::vector<float> out = c;
    ref::gemm(params(DType::kFloat32, out.data()));
    return out;
  }

  std::vector<float> naive_result() const {
    std::vector<float> out = c;
    naive::gemm(params(DType::kFloat32, out.data()));
    return out;
  }

  Shape shape;
  Options options;
  int64_t a_stride;
  int64_t b_stride;
  int64_t c_stride;
  std::vector<BFloat16> a_bf16;
  std::vector<BFloat16> b_bf16;
  std::vector<float> a;
  std::vector<float> b;
  std::vector<float> bias;
  std::vector<float> c;  // before; what lies between its rows must stay
};

void expect_as_good_as_naive(const Problem& problem) {
  const auto reference = problem.reference();
  const auto naive = problem.naive_result();
  const double atol = float32_rounding(reference);
  for (const Context& context : test::contexts()) {
    Gemm gemm(context);
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, {}, {}", problem.shape.m, problem.shape.n,
                               problem.shape.k, dtype_name(dtype), test::to_string(context)));
      GuardedBuffer<float> c(problem.c);
      gemm.run(problem.params(dtype, c.data()));
      EXPECT_TRUE(as_good_as_naive(c.span(), naive, reference, atol));
      EXPECT_TRUE(c.guards_intact());
    }
  }
}

TEST(Gemm, MatchesReferenceAtTheBordersOfTiles) {
  for (const Shape shape : {Shape{1, 1, 1}, Shape{1, 64, 63}, Shape{63, 65, 64}, Shape{64, 64, 64},
                            Shape{65, 63, 127}, Shape{127, 131, 257}, Shape{7, 1031, 67}}) {
    expect_as_good_as_naive(Problem(shape, {}));
  }
}

TEST(Gemm, MatchesReferenceAcrossTheTilesOfWidening) {
  expect_as_good_as_naive(Problem({1025, 514, 17}, {.bias = true}));
  expect_as_good_as_naive(Problem({3, 5, 2049}, {.bias = true}));
  expect_as_good_as_naive(Problem({3, 5, 4099}, {.bias = true, .accumulate = true}));
}

TEST(Gemm, AddsBiasAndAccumulates) {
  for (const bool accumulate : {false, true}) {
    for (const bool bias : {false, true}) {
      expect_as_good_as_naive(Problem({65, 63, 31}, {.bias = bias, .accumulate = accumulate}));
    }
  }
}

TEST(Gemm, ReadsAndWritesRowsThatAreApart) {
  expect_as_good_as_naive(Problem({33, 65, 63}, {.padding = 5}));
  expect_as_good_as_naive(Problem({33, 65, 63}, {.bias = true, .accumulate = true, .padding = 64}));
}

TEST(Gemm, WithoutAccumulateDoesNotReadTheOutput) {
  const Problem problem({5, 7, 9}, {});
  for (const Context& context : test::contexts()) {
    GuardedBuffer<float> c(5 * 7);  // starts as NaN
    Gemm(context).run(problem.params(DType::kBFloat16, c.data()));
    for (float value : c.values()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Gemm, NanStaysInItsRow) {
  Problem problem({4, 6, 40}, {});
  problem.a[2 * 40 + 13] = std::numeric_limits<float>::quiet_NaN();
  problem.a_bf16[2 * 40 + 13] = to_bfloat16(problem.a[2 * 40 + 13]);
  expect_as_good_as_naive(problem);
}

TEST(Gemm, EmptyOutputIsNoWork) {
  const Problem problem({3, 3, 3}, {});
  GuardedBuffer<float> c(0);
  GemmParams params = problem.params(DType::kFloat32, c.data());
  params.a.rows = params.c.rows = 0;
  Gemm({.num_threads = 1, .simd = cpu::detect_simd()}).run(params);
  EXPECT_TRUE(c.guards_intact());
}

TEST(Gemm, TheSameThreadCountGivesTheSameBits) {
  const Problem problem({70, 130, 300}, {.bias = true});
  for (const Context& context : test::contexts()) {
    std::vector<float> first = problem.c;
    std::vector<float> second = problem.c;
    Gemm(context).run(problem.params(DType::kBFloat16, first.data()));
    Gemm(context).run(problem.params(DType::kBFloat16, second.data()));
    EXPECT_TRUE(test::bitwise_equal(first, second));
  }
}

TEST(MatmulCache, CompilesAShapeOnceAndForgetsTheOldest) {
  const std::vector<float> a(64, 1.0F);
  std::vector<float> c(64);
  cpu::MatmulCache cache(/*capacity=*/2);
  const auto run = [&](int64_t m) {
    cache.run({.m = m, .n = 2, .k = 4, .a_stride = 4, .b_stride = 4, .c_stride = 2},
              {.a = a.data(), .b = a.data(), .c = c.data()});
    EXPECT_EQ(c[0], 4.0F);
  };
  run(1);
  run(2);
  run(1);
  EXPECT_EQ(cache.num_compiled(), 2);
  run(3);  // in place of 2
  run(1);
  EXPECT_EQ(cache.num_compiled(), 3);
  run(2);
  EXPECT_EQ(cache.num_compiled(), 4);
}

}  // namespace
}  // namespace millrace::kernels
