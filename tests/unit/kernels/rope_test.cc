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
using test::float32_rounding;
using test::GuardedBuffer;

struct Shape {
  int64_t num_rows;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int64_t kv_stride;
};

// The outputs one after the other in one array: q, k, v.
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

  Shape shape;
  Variant variant;
  std::vector<float> qkv;
  std::vector<float> q_norm = test::random_normals(2, shape.head_dim);
  std::vector<float> k_norm = test::random_normals(3, shape.head_dim);
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
