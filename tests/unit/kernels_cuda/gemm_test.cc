// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/gemm/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

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

struct Case {
  int64_t m, n, k;
  bool bias = false;
  bool accumulate = false;
  int64_t padding = 0;  // elements between the rows of a, b (twice) and c (three times)
};

struct Problem {
  explicit Problem(const Case& c_in, DType dtype_in = DType::kBFloat16)
      : shape(c_in),
        dtype(dtype_in),
        a_stride(shape.k + shape.padding),
        b_stride(shape.k + 2 * shape.padding),
        c_stride(shape.n + 3 * shape.padding),
        a(test::narrow_bits(test::random_normals(1, shape.m * a_stride), dtype)),
        b(test::narrow_bits(test::random_normals(2, shape.n * b_stride), dtype)),
        bias(test::widen(test::narrow(test::random_normals(3, shape.n)))),
        c(test::random_normals(4, shape.m * c_stride)) {}

  GemmParams params(const void* a_data, const void* b_data, const float* bias_data, void* c_data,
                    DType c_dtype) const {
    return {.a = {a_data, dtype, shape.m, shape.k, a_stride},
            .b = {b_data, dtype, shape.n, shape.k, b_stride},
            .bias = shape.bias ? bias_data : nullptr,
            .c = {c_data, c_dtype, shape.m, shape.n, c_stride},
            .accumulate = shape.accumulate};
  }

  std::vector<float> reference() const {
    std::vector<float> out = c;
    ref::gemm(params(a.data(), b.data(), bias.data(), out.data(), DType::kFloat32));
    return out;
  }

  std::vector<float> naive_result() const {
    std::vector<float> out = c;
    naive::gemm(params(a.data(), b.data(), bias.data(), out.data(), DType::kFloat32));
    return out;
  }

  Case shape;
  DType dtype;  // of a and b
  int64_t a_stride, b_stride, c_stride;
  std::vector<uint16_t> a, b;
  std::vector<float> bias;
  std::vector<float> c;  // before; what lies between its rows must stay
};

class GemmTest : public GpuCase {
 protected:
  void SetUp() override {
    GpuCase::SetUp();
    // Even small products are tuned, because the reference is slow for large ones.
    if (!IsSkipped()) gemm_ = std::make_unique<Gemm>(/*min_tuned_flops=*/0);
  }

  // In both dtypes; float16 only gives float32.
  void expect_as_good_as_naive(const Case& shape) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, {}", shape.m, shape.n, shape.k, dtype_name(dtype)));
      expect_as_good_as_naive(Problem(shape, dtype));
    }
  }

  void expect_as_good_as_naive(const Problem& problem) {
    const Case& shape = problem.shape;
    const auto reference = problem.reference();
    const auto naive = problem.naive_result();
    // The tensor cores sum products in groups, with a few bits less than float32 keeps: an error of
    // about 2^-23 of the largest partial sum per step, which a naive loop shows only in part.
    const double atol = float32_rounding(reference) * std::sqrt(static_cast<double>(shape.k));
    const DeviceArray<uint16_t> a(problem.a), b(problem.b);
    const DeviceArray<float> bias(problem.bias);

    DeviceArray<float> f32(problem.c);
    const auto params =
        problem.params(a.data(), b.data(), bias.data(), f32.data(), DType::kFloat32);
    run([&](Context& context) { gemm_->run(params, context); });
    EXPECT_TRUE(as_good_as_naive(f32.values(), naive, reference, atol));
    EXPECT_TRUE(f32.guards_intact());
    if (shape.accumulate || problem.dtype == DType::kFloat16) return;

    DeviceArray<BFloat16> bf16(test::narrow(problem.c));
    const auto rounded =
        problem.params(a.data(), b.data(), bias.data(), bf16.data(), DType::kBFloat16);
    run([&](Context& context) { gemm_->run(rounded, context); });
    EXPECT_TRUE(as_good_as_naive(test::widen(bf16.values()), test::widen(test::narrow(naive)),
                                 reference, atol));
    EXPECT_TRUE(bf16.guards_intact());
  }

  void TearDown() override {
    gemm_.reset();
    GpuCase::TearDown();
  }

  std::unique_ptr<Gemm> gemm_;
};

TEST_F(GemmTest, MatchesReferenceAtTheBordersOfTiles) {
  for (const Case& shape : {Case{1, 8, 8}, Case{1, 2048, 256}, Case{64, 64, 64},
                            Case{127, 264, 136}, Case{129, 512, 72}, Case{7, 1032, 1024}}) {
    expect_as_good_as_naive(shape);
  }
}

TEST_F(GemmTest, TakesWidthsThatAreNoMultipleOfEight) {
  // A vocabulary may have any size.
  expect_as_good_as_naive({5, 101, 64});
  expect_as_good_as_naive({64, 151, 128});
}

TEST_F(GemmTest, AddsBiasAndAccumulates) {
  for (const bool accumulate : {false, true}) {
    for (const bool bias : {false, true}) {
      expect_as_good_as_naive({65, 72, 128, bias, accumulate});
    }
  }
}

TEST_F(GemmTest, ReadsAndWritesRowsThatAreApart) {
  expect_as_good_as_naive({33, 64, 64, false, false, 8});
  expect_as_good_as_naive({33, 64, 64, true, true, 64});
}

TEST_F(GemmTest, WithoutAccumulateDoesNotReadTheOutput) {
  const Problem problem({5, 8, 16});
  const DeviceArray<uint16_t> a(problem.a), b(problem.b);
  DeviceArray<float> c(5 * 8);  // starts as NaN
  run([&](Context& context) {
    gemm_->run(problem.params(a.data(), b.data(), nullptr, c.data(), DType::kFloat32), context);
  });
  for (const float value : c.values()) EXPECT_TRUE(std::isfinite(value));
}

TEST_F(GemmTest, TheSameProductTwiceGivesTheSameBits) {
  const Problem problem({1030, 520, 2048, /*bias=*/true});
  const DeviceArray<uint16_t> a(problem.a), b(problem.b);
  const DeviceArray<float> bias(problem.bias);
  DeviceArray<float> first(problem.c), second(problem.c);
  for (DeviceArray<float>* c : {&first, &second}) {
    run([&](Context& context) {
      gemm_->run(problem.params(a.data(), b.data(), bias.data(), c->data(), DType::kFloat32),
                 context);
    });
  }
  EXPECT_TRUE(test::bitwise_equal(first.values(), second.values()));
}

// Therefore a clock may decide which algorithm is chosen.
TEST_F(GemmTest, EveryAlgorithmOfAShapeGivesTheSameBits) {
  cublasLtHandle_t handle = nullptr;
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  constexpr int64_t kWorkspaceBytes = 32 << 20;
  for (const Case& shape : {Case{2048, 1536, 4096}, Case{1500, 4096, 1024, /*bias=*/true}}) {
    const Problem problem(shape);
    const DeviceArray<uint16_t> a(problem.a), b(problem.b);
    const DeviceArray<float> bias(problem.bias), c(problem.c);
    DeviceArray<float> out(problem.c);
    const auto params =
        problem.params(a.data(), b.data(), bias.data(), out.data(), DType::kFloat32);
    const GemmPlan plan(GemmShape::of(params));
    const GemmOperands operands{.a = a.data(),
                                .b = b.data(),
                                .bias = params.bias,
                                .c = c.data(),
                                .out = out.data(),
                                .accumulate = true};
    const auto algorithms = plan.algorithms(handle, operands, kWorkspaceBytes, 8);
    EXPECT_GT(algorithms.size(), 1U);
    std::vector<float> first;
    for (const GemmAlgorithm& algorithm : algorithms) {
      run([&](Context& context) {
        plan.run(handle, algorithm, operands, context.scratch.allocate<std::byte>(kWorkspaceBytes),
                 context.stream);
      });
      if (first.empty()) first = out.values();
      EXPECT_TRUE(test::bitwise_equal(out.values(), first));
    }
  }
  cublasLtDestroy(handle);
}

TEST_F(GemmTest, ATunedProductIsRightAndTouchesNothingElse) {
  // First 1100 rows are timed; 1200 rows then use the algorithm found for them.
  expect_as_good_as_naive({1100, 72, 64, /*bias=*/true, /*accumulate=*/true, 8});
  expect_as_good_as_naive({1200, 72, 64, /*bias=*/true, /*accumulate=*/true, 8});
}

TEST_F(GemmTest, MoreShapesThanItKeepsPlansFor) {
  for (int64_t m = 1; m <= 70; ++m) expect_as_good_as_naive({m, 8, 16});
  expect_as_good_as_naive({1, 8, 16});
}

TEST_F(GemmTest, EmptyOutputIsNoWork) {
  run([&](Context& context) {
    gemm_->run({.a = {nullptr, DType::kBFloat16, 0, 8, 8},
                .b = {nullptr, DType::kBFloat16, 8, 8, 8},
                .c = {nullptr, DType::kFloat32, 0, 8, 8}},
               context);
  });
}

}  // namespace
}  // namespace millrace::kernels::cuda
