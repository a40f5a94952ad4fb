// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

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
using test::float32_rounding;
using test::GuardedBuffer;

struct Shape {
  int64_t num_rows;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int64_t kv_stride;
};

// The outputs q, k and v, one after another in one array.
template <typename Element>
struct Outputs {
  explicit Outputs(const Shape& s)
      : q(s.num_rows * s.num_query_heads * s.head_dim),
        k(std::vector<Element>(s.num_kv_heads * s.kv_stride * s.head_dim)),
        v(k) {}

  bool guards_intact() const { return q.guards_intact() && k.guards_intact() && v.guards_intact(); }
  std::vector<Element> all() {
    std::vector<Element> values = q.values();
    for (auto* buffer : {&k, &v}) {
      const auto more = buffer->values();
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  }

  GuardedBuffer<Element> q;
  GuardedBuffer<Element> k;  // zero before: tokens past num_rows must stay
  GuardedBuffer<Element> v;
};

// What only some models do with a head.
struct Variant {
  int32_t rotary_dim = 0;
  float turn_scale = 1;
  bool normed = false;
  bool interleaved = false;
  bool jointly = false;  // normed over all heads, and as many again elsewhere
};

struct Problem {
  explicit Problem(const Shape& s, int32_t first_position = 0, const Variant& v = {})
      : shape(s),
        variant(v),
        qkv(test::random_normals(
            1, s.num_rows * (s.num_query_heads + 2 * s.num_kv_heads) * s.head_dim)) {
    for (int64_t r = 0; r < s.num_rows; ++r) {
      positions.push_back(first_position + static_cast<int32_t>(r) * 17);
    }
    const int32_t turned = v.rotary_dim == 0 ? s.head_dim : v.rotary_dim;
    for (int32_t i = 0; i < turned / 2; ++i) {
      inv_freq.push_back(std::pow(10000.0F, -2.0F * static_cast<float>(i) / turned));
    }
  }

  template <typename Element>
  RopeQkvParams params(DType dtype, Outputs<Element>& out) const {
    return {.qkv = qkv.data(),
            .num_rows = shape.num_rows,
            .num_query_heads = shape.num_query_heads,
            .num_kv_heads = shape.num_kv_heads,
            .head_dim = shape.head_dim,
            .positions = positions.data(),
            .rotary_dim = variant.rotary_dim,
            .interleaved = variant.interleaved,
            .inv_freq = inv_freq.data(),
            .turn_scale = variant.turn_scale,
            .q_norm = variant.normed ? q_norm.data() : nullptr,
            .k_norm = variant.normed ? k_norm.data() : nullptr,
            .squares = variant.jointly ? squares.data() : nullptr,
            .num_q_squares = 2 * int64_t{shape.num_query_heads} * shape.head_dim,
            .num_k_squares = 2 * int64_t{shape.num_kv_heads} * shape.head_dim,
            .norm_eps = 0.5F,
            .dtype = dtype,
            .q = out.q.data(),
            .k = out.k.data(),
            .v = out.v.data(),
            .kv_stride = shape.kv_stride};
  }

  std::vector<float> reference() const {
    Outputs<float> out(shape);
    ref::rope_qkv(params(DType::kFloat32, out));
    return out.all();
  }

  std::vector<float> naive_result() const {
    Outputs<float> out(shape);
    naive::rope_qkv(params(DType::kFloat32, out));
    return out.all();
  }

  QkvSquaresParams squares_params(float* out) const {
    return {.qkv = qkv.data(),
            .num_rows = shape.num_rows,
            .num_query_heads = shape.num_query_heads,
            .num_kv_heads = shape.num_kv_heads,
            .head_dim = shape.head_dim,
            .squares = out};
  }

  // About what the squares of some heads sum to.
  static std::vector<float> sums(uint64_t seed, int64_t count) {
    auto values = test::random_normals(seed, count);
    for (float& value : values) value = 100 * value * value;
    return values;
  }

  Shape shape;
  Variant variant;
  std::vector<float> qkv;
  // For as many heads as a norm over all of them needs.
  std::vector<float> q_norm =
      test::random_normals(2, std::max(shape.num_query_heads, 1) * shape.head_dim);
  std::vector<float> k_norm =
      test::random_normals(3, std::max(shape.num_kv_heads, 1) * shape.head_dim);
  std::vector<float> squares = sums(4, 2 * shape.num_rows);
  std::vector<int32_t> positions;
  std::vector<float> inv_freq;
};

void expect_as_good_as_naive(const Problem& problem) {
  const auto reference = problem.reference();
  const auto naive = problem.naive_result();
  const auto naive_bf16 = test::widen(test::narrow(naive));
  const double atol = float32_rounding(reference);
  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(fmt::format("{} rows, head_dim {}, {}", problem.shape.num_rows,
                             problem.shape.head_dim, test::to_string(context)));
    Outputs<float> f32(problem.shape);
    cpu::rope_qkv(problem.params(DType::kFloat32, f32), context);
    EXPECT_TRUE(as_good_as_naive(f32.all(), naive, reference, atol));
    EXPECT_TRUE(f32.guards_intact());

    Outputs<BFloat16> bf16(problem.shape);
    cpu::rope_qkv(problem.params(DType::kBFloat16, bf16), context);
    EXPECT_TRUE(as_good_as_naive(test::widen(bf16.all()), naive_bf16, reference, atol));
    EXPECT_TRUE(bf16.guards_intact());
  }
}

TEST(RopeQkv, TurnsNeighboursWhereTheModelDoes) {
  for (const int32_t rotary_dim : {0, 32, 6}) {
    for (const bool normed : {false, true}) {
      const Variant variant{.rotary_dim = rotary_dim, .normed = normed, .interleaved = true};
      expect_as_good_as_naive(Problem({65, 4, 2, 64, 70}, 0, variant));
    }
  }
}

TEST(RopeQkv, MatchesReference) {
  for (int64_t num_rows : {1, 63, 64, 65}) {
    expect_as_good_as_naive(Problem({num_rows, 4, 2, 64, num_rows}));
  }
  expect_as_good_as_naive(Problem({13, 7, 1, 128, 13}));
  expect_as_good_as_naive(Problem({13, 3, 3, 2, 13}));
  expect_as_good_as_naive(Problem({13, 6, 2, 80, 13}));
}

TEST(RopeQkv, TakesQAloneAndKAndVAlone) {
  expect_as_good_as_naive(Problem({13, 4, 0, 64, 0}, 3, {.rotary_dim = 32, .normed = true}));
  expect_as_good_as_naive(Problem({13, 0, 2, 64, 17}, 3, {.rotary_dim = 32, .normed = true}));
}

TEST(RopeQkv, LeavesTokensPastItsRowsAlone) {
  expect_as_good_as_naive(Problem({9, 4, 2, 32, 31}));
}

TEST(RopeQkv, NormalisesEachHeadBeforeItTurns) {
  expect_as_good_as_naive(Problem({13, 4, 2, 128, 13}, 0, {.normed = true}));
  expect_as_good_as_naive(Problem({13, 6, 2, 80, 17}, 0, {.normed = true}));
}

TEST(RopeQkv, NormalisesAllHeadsTogether) {
  const Variant variant{.rotary_dim = 64, .normed = true, .jointly = true};
  expect_as_good_as_naive(Problem({13, 4, 2, 128, 13}, 0, variant));
  expect_as_good_as_naive(Problem({13, 6, 0, 80, 0}, 3, variant));
  expect_as_good_as_naive(Problem({13, 0, 3, 80, 17}, 3, variant));
  expect_as_good_as_naive(
      Problem({13, 5, 5, 64, 13}, 0, {.normed = true, .interleaved = true, .jointly = true}));
}

// The sum of n squares in any order is off by at most n roundings.
TEST(QkvSquares, AreTheSumsOfQAndOfK) {
  for (const Shape shape : {Shape{1, 1, 1, 16, 1}, Shape{65, 48, 8, 128, 65},
                            Shape{33, 6, 0, 80, 0}, Shape{33, 0, 3, 80, 33}}) {
    const Problem problem(shape);
    std::vector<float> expected(static_cast<size_t>(2 * shape.num_rows));
    ref::qkv_squares(problem.squares_params(expected.data()));
    for (const Context& context : test::contexts()) {
      std::vector<float> squares(expected.size(), -1);
      cpu::qkv_squares(problem.squares_params(squares.data()), context);
      for (size_t i = 0; i < squares.size(); ++i) {
        const double roundings = std::max(shape.num_query_heads, shape.num_kv_heads) *
                                 shape.head_dim * double{std::numeric_limits<float>::epsilon()};
        EXPECT_NEAR(squares[i], expected[i], expected[i] * roundings);
      }
    }
  }
}

// This makes a row's K and V independent of the rows next to it, also in the last layer, where they
// are projected without Q.
TEST(QkvSquares, OfARowAreTheSameBitsWhateverIsBesideIt) {
  const Shape shape{13, 6, 2, 80, 13};
  const Problem problem(shape);
  const int64_t q_width = int64_t{shape.num_query_heads} * shape.head_dim;
  const int64_t kv_width = 2 * int64_t{shape.num_kv_heads} * shape.head_dim;
  for (const Context& context : test::contexts()) {
    std::vector<float> all(static_cast<size_t>(2 * shape.num_rows));
    cpu::qkv_squares(problem.squares_params(all.data()), context);
    for (int64_t r = 0; r < shape.num_rows; ++r) {
      auto row = problem.squares_params(nullptr);
      row.qkv = problem.qkv.data() + r * (q_width + kv_width);
      row.num_rows = 1;
      std::vector<float> alone(2), of_q(2), of_k(2);
      row.squares = alone.data();
      cpu::qkv_squares(row, context);
      row.num_kv_heads = 0;
      row.squares = of_q.data();
      cpu::qkv_squares(row, context);
      row.qkv = static_cast<const float*>(row.qkv) + q_width;
      row.num_query_heads = 0;
      row.num_kv_heads = shape.num_kv_heads;
      row.squares = of_k.data();
      cpu::qkv_squares(row, context);
      const auto at = static_cast<size_t>(2 * r);
      EXPECT_EQ(alone, (std::vector{all[at], all[at + 1]}));
      EXPECT_EQ(of_q, (std::vector{all[at], 0.0F}));
      EXPECT_EQ(of_k, (std::vector{0.0F, all[at + 1]}));
    }
  }
}

TEST(RopeQkv, TurnsTheFirstElementsOfAHeadAlone) {
  expect_as_good_as_naive(Problem({13, 4, 2, 128, 13}, 0, {.rotary_dim = 96}));
  expect_as_good_as_naive(
      Problem({13, 4, 2, 64, 13}, 5, {.rotary_dim = 16, .turn_scale = 1.25F, .normed = true}));
}

TEST(RopeQkv, ScalesWhatTurns) {
  expect_as_good_as_naive(Problem({13, 4, 2, 64, 13}, 100, {.turn_scale = 1.25F}));
}

TEST(RopeQkv, HoldsAtFourMillionTokens) {
  expect_as_good_as_naive(Problem({11, 2, 1, 64, 11}, /*first_position=*/4'000'000));
}

TEST(RopeQkv, ThreadCountDoesNotChangeABit) {
  const Problem problem({131, 4, 2, 64, 131});
  const auto run = [&](int num_threads) {
    Outputs<float> out(problem.shape);
    cpu::rope_qkv(problem.params(DType::kFloat32, out),
                  {.num_threads = num_threads, .simd = cpu::detect_simd()});
    return out.all();
  };
  const auto expected = run(1);
  for (int num_threads : {2, 3}) EXPECT_TRUE(test::bitwise_equal(run(num_threads), expected));
}

}  // namespace
}  // namespace millrace::kernels
