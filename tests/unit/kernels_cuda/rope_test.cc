// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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
  int64_t num_rows;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int64_t kv_stride;

  int64_t q_count() const { return num_rows * num_query_heads * head_dim; }
  int64_t kv_count() const { return num_kv_heads * kv_stride * head_dim; }
  int64_t qkv_count() const {
    return num_rows * (num_query_heads + 2 * int64_t{num_kv_heads}) * head_dim;
  }
};

// q, k and v, unwritten rows -1.
template <typename Element>
struct HostOutputs {
  explicit HostOutputs(const Shape& s)
      : q(s.q_count(), minus_one()), k(s.kv_count(), minus_one()), v(k) {}
  static Element minus_one() {
    if constexpr (std::is_same_v<Element, float>) {
      return -1;
    } else if constexpr (std::is_same_v<Element, BFloat16>) {
      return to_bfloat16(-1);
    } else {
      return to_float16(-1);
    }
  }
  std::vector<Element> all() const {
    std::vector<Element> all = q;
    all.insert(all.end(), k.begin(), k.end());
    all.insert(all.end(), v.begin(), v.end());
    return all;
  }
  std::vector<Element> q, k, v;
};

// What only some models do with a head.
struct Variant {
  int32_t rotary_dim = 0;
  float turn_scale = 1;
  bool normed = false;
  bool interleaved = false;
  bool jointly = false;  // normed over all heads, and as many again elsewhere
};

class RopeTest : public GpuCase {
 protected:
  void expect_as_good_as_naive(const Shape& shape, const Variant& variant);

  template <typename Input, typename Output>
  std::vector<Output> rotated(const Shape& shape, RopeQkvParams params,
                              const std::vector<Input>& qkv, DType qkv_dtype, DType dtype) {
    const DeviceArray<Input> device_qkv(qkv);
    const HostOutputs<Output> start(shape);
    DeviceArray<Output> q(start.q), k(start.k), v(start.v);
    params.qkv = device_qkv.data();
    params.qkv_dtype = qkv_dtype;
    params.dtype = dtype;
    params.q = q.data();
    params.k = k.data();
    params.v = v.data();
    run([&](Context& context) { rope_qkv(params, context); });
    EXPECT_TRUE(q.guards_intact() && k.guards_intact() && v.guards_intact());
    HostOutputs<Output> out(shape);
    out.q = q.values();
    out.k = k.values();
    out.v = v.values();
    return out.all();
  }
};

void RopeTest::expect_as_good_as_naive(const Shape& shape, const Variant& variant) {
  SCOPED_TRACE(fmt::format("{} rows, head_dim {}, {} turn, normed {}, interleaved {}",
                           shape.num_rows, shape.head_dim, variant.rotary_dim, variant.normed,
                           variant.interleaved));
  const auto bf16 = test::narrow(test::random_normals(1, shape.qkv_count()));
  const auto qkv = test::widen(bf16);
  std::vector<int32_t> positions;
  for (int64_t r = 0; r < shape.num_rows; ++r) {
    positions.push_back(r == 0 ? 0 : static_cast<int32_t>(test::random_bits(2, r) % (1 << 20)));
  }
  const int32_t turned = variant.rotary_dim == 0 ? shape.head_dim : variant.rotary_dim;
  std::vector<float> inv_freq;
  for (int32_t i = 0; i < turned / 2; ++i) {
    inv_freq.push_back(std::pow(500000.0F, -2.0F * static_cast<float>(i) / turned));
  }
  // For as many heads as a norm over all of them needs.
  const auto q_norm = test::random_normals(3, std::max(shape.num_query_heads, 1) * shape.head_dim);
  const auto k_norm = test::random_normals(4, std::max(shape.num_kv_heads, 1) * shape.head_dim);
  auto squares = test::random_normals(5, 2 * shape.num_rows);
  for (float& sum : squares) sum = 100 * sum * sum;
  RopeQkvParams params = {.qkv = qkv.data(),
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
                          .kv_stride = shape.kv_stride};
  HostOutputs<float> reference_out(shape);
  params.q = reference_out.q.data();
  params.k = reference_out.k.data();
  params.v = reference_out.v.data();
  ref::rope_qkv(params);
  const auto reference = reference_out.all();
  HostOutputs<float> naive_out(shape);
  params.q = naive_out.q.data();
  params.k = naive_out.k.data();
  params.v = naive_out.v.data();
  naive::rope_qkv(params);
  const auto naive = naive_out.all();
  const auto naive_bf16 = test::widen(test::narrow(naive));
  const auto naive_f16 = test::widen(test::narrow_to_float16(naive));
  const double atol = float32_rounding(reference);

  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<float> device_inv_freq(inv_freq), device_q_norm(q_norm), device_k_norm(k_norm);
  const DeviceArray<float> device_squares(squares);
  params.positions = device_positions.data();
  params.inv_freq = device_inv_freq.data();
  if (variant.normed) {
    params.q_norm = device_q_norm.data();
    params.k_norm = device_k_norm.data();
  }
  if (variant.jointly) params.squares = device_squares.data();
  const auto f32 = DType::kFloat32;
  const auto b16 = DType::kBFloat16;
  EXPECT_TRUE(as_good_as_naive(rotated<float, float>(shape, params, qkv, f32, f32), naive,
                               reference, atol));
  EXPECT_TRUE(as_good_as_naive(rotated<BFloat16, float>(shape, params, bf16, b16, f32), naive,
                               reference, atol));
  EXPECT_TRUE(as_good_as_naive(test::widen(rotated<float, BFloat16>(shape, params, qkv, f32, b16)),
                               naive_bf16, reference, atol));
  EXPECT_TRUE(
      as_good_as_naive(test::widen(rotated<BFloat16, BFloat16>(shape, params, bf16, b16, b16)),
                       naive_bf16, reference, atol));
  EXPECT_TRUE(as_good_as_naive(
      test::widen(rotated<float, Float16>(shape, params, qkv, f32, DType::kFloat16)), naive_f16,
      reference, atol));
}

TEST_F(RopeTest, MatchesReferenceForEveryPairOfTypesUpToAMillionTokens) {
  for (const Shape shape :
       {Shape{1, 1, 1, 16, 1}, Shape{65, 8, 4, 16, 70}, Shape{127, 6, 1, 64, 127},
        Shape{64, 8, 2, 128, 100}, Shape{33, 3, 3, 256, 33}}) {
    expect_as_good_as_naive(shape, {});
  }
}

// The last two have more pairs of vectors than a block has threads, and an odd number of heads.
TEST_F(RopeTest, NormalisesEachHeadBeforeItTurns) {
  for (const Shape shape : {Shape{1, 1, 1, 16, 1}, Shape{65, 6, 1, 64, 70},
                            Shape{64, 32, 4, 128, 100}, Shape{33, 5, 5, 256, 33}}) {
    expect_as_good_as_naive(shape, {.normed = true});
  }
}

// 48 and 8 of 128 are MiniMax M2's.
TEST_F(RopeTest, NormalisesAllHeadsTogether) {
  const Variant variant{.rotary_dim = 64, .normed = true, .jointly = true};
  for (const Shape shape : {Shape{65, 48, 8, 128, 70}, Shape{33, 6, 0, 128, 0},
                            Shape{33, 0, 3, 80, 40}, Shape{33, 5, 5, 256, 33}}) {
    expect_as_good_as_naive(shape, variant);
  }
}

// The sum of n squares in any order is off by at most n roundings. The same row has the same bits
// whatever rows are next to it.
TEST_F(RopeTest, SumsTheSquaresOfQAndOfK) {
  for (const Shape shape : {Shape{1, 1, 1, 16, 1}, Shape{65, 48, 8, 128, 65},
                            Shape{33, 6, 0, 80, 0}, Shape{33, 0, 3, 80, 33}}) {
    const auto bf16 = test::narrow(test::random_normals(1, shape.qkv_count()));
    const auto qkv = test::widen(bf16);
    const auto count = static_cast<size_t>(2 * shape.num_rows);
    std::vector<float> expected(count);
    QkvSquaresParams params{.qkv = qkv.data(),
                            .num_rows = shape.num_rows,
                            .num_query_heads = shape.num_query_heads,
                            .num_kv_heads = shape.num_kv_heads,
                            .head_dim = shape.head_dim,
                            .squares = expected.data()};
    ref::qkv_squares(params);
    const DeviceArray<BFloat16> device_bf16(bf16);
    const DeviceArray<float> device_f32(qkv);
    for (const auto& [data, dtype] :
         {std::pair<const void*, DType>(device_bf16.data(), DType::kBFloat16),
          std::pair<const void*, DType>(device_f32.data(), DType::kFloat32)}) {
      DeviceArray<float> squares(std::vector<float>(count, -1));
      params.qkv = data;
      params.qkv_dtype = dtype;
      params.num_rows = shape.num_rows;
      params.squares = squares.data();
      run([&](Context& context) { qkv_squares(params, context); });
      const auto values = squares.values();
      EXPECT_TRUE(squares.guards_intact());
      const double roundings = std::max(shape.num_query_heads, shape.num_kv_heads) *
                               shape.head_dim * double{std::numeric_limits<float>::epsilon()};
      for (size_t i = 0; i < count; ++i) {
        EXPECT_NEAR(values[i], expected[i], expected[i] * roundings);
      }
      params.num_rows = (shape.num_rows + 1) / 2;
      run([&](Context& context) { qkv_squares(params, context); });
      EXPECT_EQ(squares.values(), values);
    }
  }
}

TEST_F(RopeTest, TurnsTheFirstElementsOfAHeadAlone) {
  expect_as_good_as_naive({33, 6, 2, 128, 40}, {.rotary_dim = 96, .turn_scale = 1.25F});
  expect_as_good_as_naive({33, 6, 2, 64, 40}, {.rotary_dim = 16, .normed = true});
}

TEST_F(RopeTest, TakesQAloneAndKAndVAlone) {
  const Variant variant{.rotary_dim = 32, .normed = true};
  expect_as_good_as_naive({33, 6, 0, 64, 0}, variant);
  expect_as_good_as_naive({33, 0, 2, 64, 40}, variant);
}

// 64 of 128 are GLM-4's.
TEST_F(RopeTest, TurnsNeighboursWhereTheModelDoes) {
  for (const bool normed : {false, true}) {
    const Variant whole{.normed = normed, .interleaved = true};
    for (const Shape shape : {Shape{1, 1, 1, 16, 1}, Shape{65, 6, 1, 64, 70},
                              Shape{64, 32, 2, 128, 100}, Shape{33, 5, 5, 256, 33}}) {
      expect_as_good_as_naive(shape, whole);
    }
    Variant part = whole;
    part.rotary_dim = 64;
    part.turn_scale = 1.25F;
    expect_as_good_as_naive({33, 32, 2, 128, 40}, part);
    part.rotary_dim = 48;
    expect_as_good_as_naive({33, 6, 2, 64, 40}, part);
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
