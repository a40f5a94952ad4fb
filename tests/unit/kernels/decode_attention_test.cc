// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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

// As in attention_test.cc; the merge of chunks adds a rounding of each.
constexpr double kOutAtol = 2e-6;
constexpr double kLseAtol = 4e-6;

struct Shape {
  int64_t num_tokens = 0;
  int32_t num_query_heads = 1;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kFloat32;
};

struct Result {
  std::vector<float> out;
  std::vector<float> lse;
};

class DecodeCase {
 public:
  DecodeCase(const Shape& shape, uint64_t seed)
      : shape_(shape),
        q_(test::random_normals(seed, int64_t{shape.num_query_heads} * shape.head_dim)),
        k_(test::random_normals(seed + 1, slab_elements())),
        v_(test::random_normals(seed + 2, slab_elements())) {
    if (shape_.dtype == DType::kFloat32) return;
    k16_ = test::narrow_bits(k_, shape.dtype);
    v16_ = test::narrow_bits(v_, shape.dtype);
    k_ = test::widen_bits(k16_, shape.dtype);
    v_ = test::widen_bits(v16_, shape.dtype);
  }

  Result run_cpu(const cpu::Context& context) {
    test::GuardedBuffer<float> out(static_cast<int64_t>(q_.size()));
    test::GuardedBuffer<float> lse(shape_.num_query_heads);
    DecodeAttentionParams p = params();
    if (shape_.dtype != DType::kFloat32) {
      p.kv.k = k16_.data();
      p.kv.v = v16_.data();
      p.kv.dtype = shape_.dtype;
    }
    p.out = out.data();
    p.lse = lse.data();
    cpu::decode_attention(p, context);
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(lse.guards_intact());
    return {.out = out.values(), .lse = lse.values()};
  }

  Result run_ref() {
    Result result = empty_result();
    DecodeAttentionParams p = params();
    p.out = result.out.data();
    p.lse = result.lse.data();
    ref::decode_attention(p);
    return result;
  }

  // K and V are widened and everything else is float32, so the dtype makes no difference here.
  Result run_naive() {
    Result result = empty_result();
    DecodeAttentionParams p = params();
    p.out = result.out.data();
    p.lse = result.lse.data();
    naive::decode_attention(p);
    return result;
  }

 private:
  int64_t stride() const { return shape_.num_tokens + 1; }
  int64_t slab_elements() const { return shape_.num_kv_heads * stride() * shape_.head_dim; }
  Result empty_result() const {
    return {.out = std::vector<float>(q_.size()),
            .lse = std::vector<float>(static_cast<size_t>(shape_.num_query_heads))};
  }

  DecodeAttentionParams params() {
    return {.q = q_.data(),
            .num_query_heads = shape_.num_query_heads,
            .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
            .kv = {.k = k_.data(),
                   .v = v_.data(),
                   .dtype = DType::kFloat32,
                   .num_kv_heads = shape_.num_kv_heads,
                   .head_dim = shape_.head_dim,
                   .num_tokens = shape_.num_tokens,
                   .token_stride = stride()}};
  }

  Shape shape_;
  std::vector<float> q_, k_, v_;  // K and V rounded to the dtype
  std::vector<uint16_t> k16_, v16_;
};

void expect_right(const Shape& shape, uint64_t seed) {
  DecodeCase problem(shape, seed);
  const Result reference = problem.run_ref();
  const Result naive = problem.run_naive();
  for (const cpu::Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    const Result actual = problem.run_cpu(context);
    EXPECT_TRUE(test::as_good_as_naive(actual.out, naive.out, reference.out, kOutAtol));
    EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, kLseAtol));
  }
}

class DecodeAttention : public testing::TestWithParam<DType> {};

// 1024 tokens are one chunk of the CPU's.
TEST_P(DecodeAttention, IsRightAtEveryLength) {
  for (const int64_t num_tokens : {1, 2, 63, 64, 65, 127, 1000, 1024, 1025, 3001}) {
    SCOPED_TRACE(num_tokens);
    expect_right({.num_tokens = num_tokens, .dtype = GetParam()}, 1);
  }
}

TEST_P(DecodeAttention, IsRightAtEveryHeadDim) {
  for (const int32_t head_dim : {16, 64, 80, 128, 256}) {
    SCOPED_TRACE(head_dim);
    expect_right({.num_tokens = 200, .head_dim = head_dim, .dtype = GetParam()}, 2);
  }
}

// 70 query heads of one kv head are more than one tile.
TEST_P(DecodeAttention, GivesEachQueryHeadItsKvHead) {
  for (const int32_t ratio : {1, 2, 4, 8, 70}) {
    SCOPED_TRACE(ratio);
    expect_right({.num_tokens = 150,
                  .num_query_heads = 2 * ratio,
                  .num_kv_heads = 2,
                  .head_dim = 32,
                  .dtype = GetParam()},
                 3);
  }
}

TEST_P(DecodeAttention, NoTokensGiveZerosWithoutMass) {
  DecodeCase problem(
      {.num_tokens = 0, .num_query_heads = 4, .num_kv_heads = 2, .dtype = GetParam()}, 4);
  for (const cpu::Context& context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    const Result result = problem.run_cpu(context);
    for (const float value : result.out) EXPECT_EQ(value, 0.0F);
    for (const float lse : result.lse) EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
  }
}

TEST_P(DecodeAttention, IsBitwiseTheSameForAnyNumberOfThreads) {
  DecodeCase problem(
      {.num_tokens = 5000, .num_query_heads = 4, .num_kv_heads = 2, .dtype = GetParam()}, 5);
  for (cpu::Context context : test::contexts()) {
    SCOPED_TRACE(test::to_string(context));
    const Result one = problem.run_cpu(context);
    context.num_threads = 3;
    const Result other = problem.run_cpu(context);
    EXPECT_TRUE(test::bitwise_equal(other.out, one.out));
    EXPECT_TRUE(test::bitwise_equal(other.lse, one.lse));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DecodeAttention,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

}  // namespace
}  // namespace millrace::kernels
