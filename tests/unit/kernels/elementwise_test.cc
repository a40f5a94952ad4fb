// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/naive_operations.h"

namespace millrace::kernels {
namespace {

using cpu::Context;
using test::as_good_as_naive;
using test::bitwise_equal;
using test::float32_rounding;
using test::GuardedBuffer;

constexpr int64_t kRowCounts[] = {1, 63, 64, 65, 127};
constexpr int64_t kWidths[] = {1, 15, 64, 127, 257};

// Runs `operation` for both output types in every context. Each result is compared with the float32
// reference and a naive float32 loop, whose result is rounded for bfloat16. Rows of the output are
// `padding` apart; those gaps and the guards must stay untouched.
template <typename Params>
void expect_as_good_as_naive(Params params, int64_t rows, int64_t cols, int64_t padding,
                             void (*reference_operation)(const Params&),
                             void (*naive_operation)(const Params&),
                             void (*operation)(const Params&, const Context&)) {
  const int64_t stride = cols + padding;
  std::vector<float> reference(rows * stride, -1);
  params.out = {reference.data(), DType::kFloat32, rows, cols, stride};
  reference_operation(params);
  std::vector<float> naive(rows * stride, -1);
  params.out.data = naive.data();
  naive_operation(params);
  const std::vector<float> naive_bf16 = test::widen(test::narrow(naive));
  const double atol = float32_rounding(reference);

  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(fmt::format("{} x {}, {}", rows, cols, test::to_string(context)));
    GuardedBuffer<float> f32(std::vector<float>(rows * stride, -1));
    params.out = {f32.data(), DType::kFloat32, rows, cols, stride};
    operation(params, context);
    EXPECT_TRUE(as_good_as_naive(f32.span(), naive, reference, atol));
    EXPECT_TRUE(f32.guards_intact());

    GuardedBuffer<BFloat16> bf16(std::vector<BFloat16>(rows * stride, to_bfloat16(-1)));
    params.out = {bf16.data(), DType::kBFloat16, rows, cols, stride};
    operation(params, context);
    EXPECT_TRUE(as_good_as_naive(test::widen(bf16.values()), naive_bf16, reference, atol));
    EXPECT_TRUE(bf16.guards_intact());
  }
}

TEST(Embed, CopiesTheRowsOfTheTokens) {
  constexpr int64_t kVocabulary = 71;
  constexpr int64_t kStride = 70;
  const std::vector<float> f32 = test::random_normals(1, kVocabulary * kStride);
  const std::vector<BFloat16> bf16 = test::narrow(f32);
  std::vector<Float16> f16(f32.size());
  for (size_t i = 0; i < f16.size(); ++i) f16[i].bits = test::random_bits(2, i) & 0xbfff;  // no NaN
  const std::pair<const void*, DType> tables[] = {{f32.data(), DType::kFloat32},
                                                  {bf16.data(), DType::kBFloat16},
                                                  {f16.data(), DType::kFloat16}};
  std::vector<int32_t> tokens;
  for (int i = 0; i < 1031; ++i) tokens.push_back(test::random_bits(3, i) % kVocabulary);

  for (const auto& [table, dtype] : tables) {
    for (int64_t cols : {1, 63, 64, 67}) {
      const float scale = cols == 64 ? 5.65625F : 1;
      const int64_t count = std::ssize(tokens) * cols;
      std::vector<float> expected(count);
      EmbedParams params = {.token_ids = tokens.data(),
                            .num_rows = std::ssize(tokens),
                            .table = {table, dtype, kVocabulary, cols, kStride},
                            .scale = scale,
                            .hidden = expected.data()};
      ref::embed(params);
      for (const Context& context : test::contexts()) {
        GuardedBuffer<float> hidden(count);
        params.hidden = hidden.data();
        cpu::embed(params, context);
        EXPECT_TRUE(bitwise_equal(hidden.span(), expected)) << test::to_string(context);
        EXPECT_TRUE(hidden.guards_intact());
      }
    }
  }
}

void expect_rms_norm(int64_t rows, int64_t cols, int64_t padding) {
  const auto x = test::random_normals(1, rows * cols, 3.0F);
  const auto weight = test::random_normals(2, cols);
  constexpr float kEps = 1e-5F;
  const RmsNormParams params = {.x = x.data(), .weight = weight.data(), .eps = kEps, .out = {}};
  expect_as_good_as_naive(params, rows, cols, padding, ref::rms_norm, naive::rms_norm,
                          cpu::rms_norm);
}

TEST(RmsNorm, MatchesReference) {
  for (int64_t rows : kRowCounts) {
    for (int64_t cols : kWidths) expect_rms_norm(rows, cols, /*padding=*/0);
  }
  expect_rms_norm(65, 1031, /*padding=*/9);
}

TEST(RmsNorm, AZeroRowStaysZero) {
  const std::vector<float> x(8, 0.0F);
  const std::vector<float> weight(8, 2.0F);
  std::vector<float> out(8, 1.0F);
  cpu::rms_norm({.x = x.data(),
                 .weight = weight.data(),
                 .eps = 1e-6F,
                 .out = dense_matrix(out.data(), DType::kFloat32, 1, 8)},
                {.num_threads = 1, .simd = cpu::detect_simd()});
  EXPECT_TRUE(bitwise_equal(out, x));
}

TEST(RmsNorm, MayWriteWhereItReads) {
  const auto x = test::random_normals(1, 3 * 70, 3.0F);
  const auto weight = test::random_normals(2, 70);
  std::vector<float> expected(x.size());
  RmsNormParams params = {.x = x.data(),
                          .weight = weight.data(),
                          .eps = 1e-6F,
                          .out = dense_matrix(expected.data(), DType::kFloat32, 3, 70)};
  for (const Context& context : test::contexts()) {
    cpu::rms_norm(params, context);
    std::vector<float> in_place = x;
    auto same = params;
    same.x = in_place.data();
    same.out.data = in_place.data();
    cpu::rms_norm(same, context);
    EXPECT_TRUE(bitwise_equal(in_place, expected)) << test::to_string(context);
  }
}

class ActivateTest : public testing::TestWithParam<Activation> {
 protected:
  static void expect_matches(int64_t rows, int64_t cols, int64_t padding) {
    const auto gate_up = test::random_normals(1, rows * 2 * cols, 4.0F);
    const ActivateParams params = {.gate_up = gate_up.data(), .activation = GetParam(), .out = {}};
    expect_as_good_as_naive(params, rows, cols, padding, ref::activate, naive::activate,
                            cpu::activate);
  }
};

TEST_P(ActivateTest, MatchesReference) {
  for (int64_t rows : kRowCounts) {
    for (int64_t cols : kWidths) expect_matches(rows, cols, /*padding=*/0);
  }
  expect_matches(65, 1031, /*padding=*/9);
}

INSTANTIATE_TEST_SUITE_P(
    Activations, ActivateTest,
    testing::Values(Activation{.kind = Activation::Kind::kSilu},
                    Activation{.kind = Activation::Kind::kGeluTanh},
                    Activation{.kind = Activation::Kind::kClamped, .alpha = 1.702F, .limit = 7}),
    [](const auto& activation) {
      if (activation.param.kind == Activation::Kind::kSilu) return "silu";
      return activation.param.kind == Activation::Kind::kGeluTanh ? "gelu_tanh" : "clamped";
    });

// As in gpt-oss: gates are clamped from above, ups on both sides.
TEST(Activate, ClampsGatesAboveAndUpsOnBothSides) {
  constexpr float kAlpha = 1.702F, kLimit = 7;
  const std::vector<float> gate_up = {100, -100, 2, 2, 3, 3, 50, -50};
  const auto glu = [&](float h) { return h / (1 + std::exp(-kAlpha * h)); };
  const std::vector<float> expected = {glu(7) * 4, glu(-100) * 4, glu(2) * 8, glu(2) * -6};
  for (const Context& context : test::contexts()) {
    std::vector<float> out(4, -1);
    cpu::activate({.gate_up = gate_up.data(),
                   .activation = {Activation::Kind::kClamped, kAlpha, kLimit},
                   .out = dense_matrix(out.data(), DType::kFloat32, 1, 4)},
                  context);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_NEAR(out[i], expected[i], 1e-6 * std::abs(expected[i]) + 1e-30) << i;
    }
  }
}

// If the exponential is out of float32's range, the result is the gate or 0, times up.
TEST(Activate, GatesFarFrom0AreNoNumbersOutOfRange) {
  for (const auto kind : {Activation::Kind::kSilu, Activation::Kind::kGeluTanh}) {
    for (const Context& context : test::contexts()) {
      const std::vector<float> gate_up = {3e4F, -3e4F, 1e9F, -1e9F, 2, 2, 2, 2};
      std::vector<float> out(4, -1);
      cpu::activate({.gate_up = gate_up.data(),
                     .activation = {.kind = kind},
                     .out = dense_matrix(out.data(), DType::kFloat32, 1, 4)},
                    context);
      EXPECT_FLOAT_EQ(out[0], 6e4F);
      EXPECT_NEAR(out[1], 0, 1e-20);
      EXPECT_FLOAT_EQ(out[2], 2e9F);
      EXPECT_NEAR(out[3], 0, 1e-20);
    }
  }
}

TEST(Add, AddsEachElementOnce) {
  for (int64_t count : {0, 1, 63, 64, 65, 32767, 32769, 100003}) {
    const auto x = test::random_normals(1, count);
    const auto y = test::random_normals(2, count);
    auto expected = x;
    ref::add({.x = expected.data(), .y = y.data(), .count = count});
    for (const Context& context : test::contexts()) {
      GuardedBuffer<float> sum(x);
      cpu::add({.x = sum.data(), .y = y.data(), .count = count}, context);
      EXPECT_TRUE(bitwise_equal(sum.span(), expected)) << test::to_string(context);
      EXPECT_TRUE(sum.guards_intact());
    }
  }
}

TEST(Elementwise, ThreadCountDoesNotChangeABit) {
  constexpr int64_t kRows = 257;
  constexpr int64_t kCols = 512;  // enough elements for several threads
  const auto x = test::random_normals(1, kRows * 2 * kCols);
  const auto run = [&](int num_threads) {
    const Context context = {.num_threads = num_threads, .simd = cpu::detect_simd()};
    std::vector<float> norm(kRows * kCols);
    std::vector<float> silu(kRows * kCols);
    cpu::rms_norm({.x = x.data(),
                   .weight = x.data(),
                   .eps = 1e-5F,
                   .out = dense_matrix(norm.data(), DType::kFloat32, kRows, kCols)},
                  context);
    cpu::activate(
        {.gate_up = x.data(), .out = dense_matrix(silu.data(), DType::kFloat32, kRows, kCols)},
        context);
    norm.insert(norm.end(), silu.begin(), silu.end());
    return norm;
  };
  const auto expected = run(1);
  for (int num_threads : {2, 3, 4}) EXPECT_TRUE(bitwise_equal(run(num_threads), expected));
}

}  // namespace
}  // namespace millrace::kernels
