// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit floats on the CPU, against the reference.
#include "kernels/api/float8_params.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/float8/float8_products.h"
#include "kernels/cpu/float8/float8_rows.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/float8_case.h"

namespace millrace::kernels {
namespace {

using test::Float8Rows;

struct Quantized {
  Quantized(int64_t rows, int64_t cols)
      : codes(static_cast<size_t>(rows * cols)),
        scales(static_cast<size_t>(rows)),
        view{codes.data(), scales.data(), rows, cols, cols} {}

  std::vector<uint8_t> bits() const {
    std::vector<uint8_t> all;
    for (const Float8 code : codes) all.push_back(code.bits);
    return all;
  }

  std::vector<Float8> codes;
  std::vector<float> scales;
  Float8Matrix view;
};

// Rows of every kind: normals, zeros, tiny numbers, huge numbers, and one with a NaN.
std::vector<float> rows_of_every_kind(int64_t cols) {
  auto values = test::random_normals(1, 6 * cols);
  for (int64_t c = 0; c < cols; ++c) {
    values[static_cast<size_t>(cols + c)] = 0;
    values[static_cast<size_t>(2 * cols + c)] *= 1e-38F;
    values[static_cast<size_t>(3 * cols + c)] *= 1e37F;
  }
  values[static_cast<size_t>(4 * cols + 3)] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

TEST(Float8, QuantisesBitByBitAsTheReference) {
  for (const int64_t cols : {16, 48, 4096}) {
    auto values = rows_of_every_kind(cols);
    const auto narrow = test::narrow(values);
    for (const auto& context : test::contexts()) {
      SCOPED_TRACE(test::to_string(context));
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const void* data =
            dtype == DType::kFloat32 ? static_cast<const void*>(values.data()) : narrow.data();
        Quantized expected(6, cols), actual(6, cols);
        ref::float8_quantize({.a = dense_matrix(data, dtype, 6, cols), .out = expected.view});
        cpu::float8_quantize({.a = dense_matrix(data, dtype, 6, cols), .out = actual.view},
                             context);
        EXPECT_EQ(actual.bits(), expected.bits());
        EXPECT_EQ(actual.scales, expected.scales);
      }
    }
  }
}

// A sum in another order may change the root, and move a number across the border between two
// codes.
TEST(Float8, NormsOfTheReferenceWithinOneCode) {
  constexpr int64_t kRows = 5, kCols = 1008;
  const auto x = test::random_normals(1, kRows * kCols, 3);
  const auto weight = test::random_normals(2, kCols);
  for (const auto& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    Quantized expected(kRows, kCols), actual(kRows, kCols);
    ref::float8_rms_norm(
        {.x = x.data(), .weight = weight.data(), .eps = 1e-5F, .out = expected.view});
    cpu::float8_rms_norm({.x = x.data(), .weight = weight.data(), .eps = 1e-5F, .out = actual.view},
                         context);
    int64_t moved = 0;
    for (size_t i = 0; i < actual.codes.size(); ++i) {
      const int difference = actual.codes[i].bits - expected.codes[i].bits;
      EXPECT_LE(std::abs(difference), 1) << i;
      moved += difference != 0;
    }
    EXPECT_LT(moved, kRows * kCols / 1000);
    EXPECT_TRUE(
        test::within(actual.scales, expected.scales, 4 * test::float32_rounding(expected.scales)));
  }
}

struct Case {
  int64_t m, n, k;
  bool bias = false, accumulate = false;
  int64_t padding = 0;
};

TEST(Float8, ProductsAreThoseOfTheReference) {
  for (const Case& c : {Case{1, 1, 16}, Case{3, 700, 64, true}, Case{33, 520, 304, false, true, 16},
                        Case{130, 64, 2064, true, true}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", c.m, c.n, c.k));
    Float8Rows a(1, c.m, c.k, c.padding), b(2, c.n, c.k, 2 * c.padding);
    const auto bias = test::random_normals(3, c.n);
    const auto before = test::random_normals(4, c.m * (c.n + c.padding));
    const auto params = [&](std::vector<float>& out) {
      return Float8GemmParams{.a = a.view(),
                              .b = b.view(),
                              .bias = c.bias ? bias.data() : nullptr,
                              .c = {out.data(), DType::kFloat32, c.m, c.n, c.n + c.padding},
                              .accumulate = c.accumulate};
    };
    auto expected = before;
    ref::float8_gemm(params(expected));
    for (const auto& context : test::contexts()) {
      SCOPED_TRACE(test::to_string(context));
      cpu::Gemm gemm(context);
      cpu::Float8Products products(context, gemm);
      auto actual = before;
      products.gemm(params(actual));
      // Both factors are rounded once. Sums are like those of a float32 product with terms below 1.
      EXPECT_TRUE(test::within(
          actual, expected,
          test::float32_rounding(expected) * (4 + std::sqrt(static_cast<double>(c.k)))));
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
