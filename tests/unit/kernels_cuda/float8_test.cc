// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit floats on a GPU, against the reference.
#include "kernels/api/float8_params.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/sm90/gemm/gemm.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/float8_case.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

using test::Float8Rows;

// The rows in device memory.
struct DeviceRows {
  explicit DeviceRows(const Float8Rows& rows_in)
      : rows(rows_in), codes(rows_in.codes), scales(rows_in.scales) {}

  Float8Matrix view() const { return rows.view_of(codes.data(), scales.data()); }

  const Float8Rows& rows;
  DeviceArray<Float8> codes;
  DeviceArray<float> scales;
};

std::vector<uint8_t> bits_of(const std::vector<Float8>& codes) {
  std::vector<uint8_t> all;
  for (const Float8 code : codes) all.push_back(code.bits);
  return all;
}

class Float8Test : public GpuCase {
 protected:
  void SetUp() override {
    GpuCase::SetUp();
    if (!IsSkipped()) gemm_ = std::make_unique<Gemm>(/*min_tuned_flops=*/0);
  }

  std::unique_ptr<Gemm> gemm_;
};

// Widths held in 16 and 64 elements of a thread, and one that is read twice.
TEST_F(Float8Test, QuantisesBitByBitAsTheReference) {
  constexpr int64_t kRows = 6;
  for (const int64_t cols : {16, 4096, 4112, 14336, 16400}) {
    SCOPED_TRACE(cols);
    auto values = test::random_normals(1, kRows * cols);
    for (int64_t c = 0; c < cols; ++c) {
      values[static_cast<size_t>(cols + c)] = 0;
      values[static_cast<size_t>(2 * cols + c)] *= 1e-38F;
      values[static_cast<size_t>(3 * cols + c)] *= 1e37F;
    }
    values[static_cast<size_t>(4 * cols + 3)] = std::numeric_limits<float>::quiet_NaN();
    const auto narrow = test::narrow_bits(values, DType::kBFloat16);
    std::vector<Float8> codes(static_cast<size_t>(kRows * cols));
    std::vector<float> scales(kRows);
    ref::float8_quantize(
        {.a = dense_matrix(static_cast<const void*>(narrow.data()), DType::kBFloat16, kRows, cols),
         .out = {codes.data(), scales.data(), kRows, cols, cols}});
    const DeviceArray<uint16_t> a(narrow);
    DeviceArray<Float8> device_codes(codes);
    DeviceArray<float> device_scales(kRows);
    run([&](Context& context) {
      float8_quantize(
          {.a = dense_matrix(static_cast<const void*>(a.data()), DType::kBFloat16, kRows, cols),
           .out = {device_codes.data(), device_scales.data(), kRows, cols, cols}},
          context);
    });
    EXPECT_EQ(bits_of(device_codes.values()), bits_of(codes));
    EXPECT_EQ(device_scales.values(), scales);
    EXPECT_TRUE(device_codes.guards_intact() && device_scales.guards_intact());
  }
}

TEST_F(Float8Test, NormsOfTheReferenceWithinOneCode) {
  constexpr int64_t kRows = 5;
  for (const int64_t cols : {16, 1008, 4096, 16384}) {
    SCOPED_TRACE(cols);
    const auto x = test::random_normals(1, kRows * cols, 3);
    const auto weight = test::random_normals(2, cols);
    std::vector<Float8> codes(static_cast<size_t>(kRows * cols));
    std::vector<float> scales(kRows);
    ref::float8_rms_norm({.x = x.data(),
                          .weight = weight.data(),
                          .eps = 1e-5F,
                          .out = {codes.data(), scales.data(), kRows, cols, cols}});
    const DeviceArray<float> device_x(x), device_weight(weight);
    DeviceArray<Float8> device_codes(codes);
    DeviceArray<float> device_scales(kRows);
    run([&](Context& context) {
      float8_rms_norm({.x = device_x.data(),
                       .weight = device_weight.data(),
                       .eps = 1e-5F,
                       .out = {device_codes.data(), device_scales.data(), kRows, cols, cols}},
                      context);
    });
    const auto actual = device_codes.values();
    int64_t moved = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      const int difference = actual[i].bits - codes[i].bits;
      EXPECT_LE(std::abs(difference), 1) << i;
      moved += difference != 0;
    }
    EXPECT_LE(moved, 1 + kRows * cols / 1000);
    EXPECT_TRUE(test::within(device_scales.values(), scales, 8 * test::float32_rounding(scales)));
  }
}

struct Case {
  int64_t m, n, k;
  bool bias = false, accumulate = false;
  int64_t padding = 0;
  bool narrow = false;  // bfloat16, not float32
};

TEST_F(Float8Test, ProductsLoseWhatTensorCoresCutOff) {
  for (const Case& c :
       {Case{1, 64, 16}, Case{5, 64, 48}, Case{64, 128, 512}, Case{129, 72, 1040, false, true},
        Case{1100, 96, 256, true, false, 0, true}, Case{77, 256, 4096, false, true},
        Case{50, 80, 320, true, false, 16, true}, Case{1, 64, 16, true}, Case{130, 264, 512, true},
        Case{77, 2880, 64, true, true}}) {
    const DType dtype = c.narrow ? DType::kBFloat16 : DType::kFloat32;
    SCOPED_TRACE(
        fmt::format("{} x {} x {}, {}, bias {}", c.m, c.n, c.k, dtype_name(dtype), c.bias));
    Float8Rows a(1, c.m, c.k, c.padding), b(2, c.n, c.k, 2 * c.padding);
    const auto bias = test::widen(test::narrow(test::random_normals(3, c.n)));
    auto expected = test::random_normals(4, c.m * c.n);
    const auto before = expected;
    ref::float8_gemm({.a = a.view(),
                      .b = b.view(),
                      .bias = c.bias ? bias.data() : nullptr,
                      .c = dense_matrix(expected.data(), DType::kFloat32, c.m, c.n),
                      .accumulate = c.accumulate});
    const DeviceRows device_a(a), device_b(b);
    const DeviceArray<float> device_bias(bias);
    // Twice, because what is cut off of single products adds up: to 1.3 times the largest loss of a
    // sum, in one of 221,760 elements.
    double atol =
        2 * test::float8_sum_loss(a.view(), b.view()) + 4 * test::float32_rounding(expected);
    std::vector<float> actual;
    const auto multiply = [&](void* out) {
      run([&](Context& context) {
        gemm_->run(Float8GemmParams{.a = device_a.view(),
                                    .b = device_b.view(),
                                    .bias = c.bias ? device_bias.data() : nullptr,
                                    .c = dense_matrix(out, dtype, c.m, c.n),
                                    .accumulate = c.accumulate},
                   context);
      });
    };
    if (dtype == DType::kFloat32) {
      DeviceArray<float> out(before);
      multiply(out.data());
      actual = out.values();
      EXPECT_TRUE(out.guards_intact());
    } else {
      DeviceArray<uint16_t> out(test::narrow_bits(before, dtype));
      multiply(out.data());
      actual = test::widen_bits(out.values(), dtype);
      EXPECT_TRUE(out.guards_intact());
      atol += 0x1p-8 * test::float32_rounding(expected) * 0x1p24;  // rounded to 8 bits
    }
    EXPECT_TRUE(test::within(actual, expected, atol));
  }
}

TEST_F(Float8Test, ARowIsTheSameWhateverRowsAreComputedWithIt) {
  constexpr int64_t kRows = 1300, kCols = 1024, kDepth = 2048;
  Float8Rows a(1, kRows, kDepth), b(2, kCols, kDepth);
  const DeviceRows device_a(a), device_b(b);
  const auto product = [&](int64_t first, int64_t count) {
    DeviceArray<float> out(count * kCols);
    ConstFloat8Matrix rows = device_a.view();
    rows.data += first * kDepth;
    rows.scales += first;
    rows.rows = count;
    run([&](Context& context) {
      gemm_->run(Float8GemmParams{.a = rows,
                                  .b = device_b.view(),
                                  .c = dense_matrix(out.data(), DType::kFloat32, count, kCols)},
                 context);
    });
    return out.values();
  };
  const auto all = product(0, kRows);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 64}, {64, 1100}, {1232, 68}}) {
    EXPECT_TRUE(test::bitwise_equal(product(first, count),
                                    std::span(all).subspan(static_cast<size_t>(first * kCols),
                                                           static_cast<size_t>(count * kCols))));
  }
}

// As for 16 bits, and for the same reason. If the heuristics name only one algorithm, none can
// differ.
TEST_F(Float8Test, EveryAlgorithmOfAShapeGivesTheSameBits) {
  cublasLtHandle_t handle = nullptr;
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  constexpr int64_t kWorkspaceBytes = 32 << 20;
  constexpr int64_t kRows = 2048, kCols = 1536, kDepth = 4096;
  Float8Rows a(1, kRows, kDepth), b(2, kCols, kDepth);
  const DeviceRows device_a(a), device_b(b);
  DeviceArray<float> out(kRows * kCols);
  const GemmPlan plan(GemmShape::of(
      Float8GemmParams{.a = device_a.view(),
                       .b = device_b.view(),
                       .c = dense_matrix(out.data(), DType::kFloat32, kRows, kCols)}));
  const GemmOperands operands{.a = device_a.codes.data(),
                              .b = device_b.codes.data(),
                              .a_scales = device_a.scales.data(),
                              .b_scales = device_b.scales.data(),
                              .c = out.data(),
                              .out = out.data()};
  const auto algorithms = plan.algorithms(handle, operands, kWorkspaceBytes, 8);
  ASSERT_FALSE(algorithms.empty());
  std::vector<float> first;
  for (const GemmAlgorithm& algorithm : algorithms) {
    run([&](Context& context) {
      plan.run(handle, algorithm, operands, context.scratch.allocate<std::byte>(kWorkspaceBytes),
               context.stream);
    });
    if (first.empty()) first = out.values();
    EXPECT_TRUE(test::bitwise_equal(out.values(), first));
  }
  EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

TEST_F(Float8Test, SwigluScalesBeforeItActivates) {
  struct Shape {
    int64_t rows, columns, depth, padding = 0;
  };
  for (const Shape& s : {Shape{1, 8, 16}, Shape{65, 136, 144}, Shape{257, 264, 1040},
                         Shape{300, 136, 208, 16}, Shape{1100, 1000, 128}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", s.rows, s.columns, s.depth));
    Float8Rows a(1, s.rows, s.depth, s.padding), weight(2, 2 * s.columns, s.depth);
    // Gates of about 2, which cover all slopes of SiLU and GELU.
    for (float& scale : weight.scales) scale *= 2 * std::sqrt(static_cast<float>(s.depth));
    const DeviceRows device_a(a), device_weight(weight);
    // A factor moves by the loss, and is multiplied by a factor of at most about 10, at a slope of
    // at most 1.1 for SiLU and 1.13 for GELU.
    const double loss = test::float8_sum_loss(a.view(), weight.view());
    for (const auto kind : {Activation::Kind::kSilu, Activation::Kind::kGeluTanh}) {
      std::vector<float> expected(static_cast<size_t>(s.rows * s.columns));
      ref::float8_swiglu(
          {.a = a.view(),
           .gate_up = weight.view(),
           .activation = {.kind = kind},
           .out = dense_matrix(expected.data(), DType::kFloat32, s.rows, s.columns)});
      DeviceArray<uint16_t> out(s.rows * s.columns);
      run([&](Context& context) {
        float8_swiglu({.a = device_a.view(),
                       .gate_up = device_weight.view(),
                       .activation = {.kind = kind},
                       .out = dense_matrix(out.data(), DType::kBFloat16, s.rows, s.columns)},
                      context);
      });
      const double rounding = test::float32_rounding(expected) * 0x1p24 * 0x1p-8;
      EXPECT_TRUE(test::within(test::widen_bits(out.values(), DType::kBFloat16), expected,
                               2 * 10 * 1.13 * loss + rounding));
      EXPECT_TRUE(out.guards_intact());
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
