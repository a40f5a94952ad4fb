// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/naive_operations.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

// Scores are scaled in base 2, and exp2 is accurate to 2 ulp: 2^-22 of a score's size in the
// logarithm, and as much in a weight.
constexpr double kOutAtol = 4e-6;
constexpr double kLseAtol = 8e-6;

struct Shape {
  int64_t num_tokens = 0;
  int32_t num_query_heads = 1;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 128;
};

struct Output {
  std::vector<float> out, lse;
};

// K and V are rounded to bfloat16 and are multiples of 2^-24, so that all element types hold the
// same values.
struct Problem {
  explicit Problem(const Shape& shape_in)
      : shape(shape_in),
        stride(shape.num_tokens + 1),
        q(test::random_normals(1, int64_t{shape.num_query_heads} * shape.head_dim)),
        k16(test::narrow(test::random_normals(2, shape.num_kv_heads * stride * shape.head_dim))),
        v16(test::narrow(test::random_normals(3, shape.num_kv_heads * stride * shape.head_dim))),
        k(test::widen(k16)),
        v(test::widen(v16)) {}

  DecodeAttentionParams params(const float* q_data, const void* k_data, const void* v_data,
                               DType dtype) const {
    return {.q = q_data,
            .num_query_heads = shape.num_query_heads,
            .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
            .kv = {.k = k_data,
                   .v = v_data,
                   .dtype = dtype,
                   .num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .num_tokens = shape.num_tokens,
                   .token_stride = stride}};
  }

  Output on_host(void (*operation)(const DecodeAttentionParams&)) const {
    Output output = {.out = std::vector<float>(q.size()),
                     .lse = std::vector<float>(static_cast<size_t>(shape.num_query_heads))};
    auto p = params(q.data(), k.data(), v.data(), DType::kFloat32);
    p.out = output.out.data();
    p.lse = output.lse.data();
    operation(p);
    return output;
  }

  Shape shape;
  int64_t stride;
  std::vector<float> q;
  std::vector<BFloat16> k16, v16;
  std::vector<float> k, v;
};

class DecodeAttentionTest : public GpuCase {
 protected:
  template <typename Element>
  Output on_gpu(const Problem& problem, const std::vector<Element>& k_values,
                const std::vector<Element>& v_values, DType dtype) {
    const DeviceArray<float> q(problem.q);
    const DeviceArray<Element> k(k_values), v(v_values);
    DeviceArray<float> out(static_cast<int64_t>(problem.q.size()));
    DeviceArray<float> lse(problem.shape.num_query_heads);
    auto params = problem.params(q.data(), k.data(), v.data(), dtype);
    params.out = out.data();
    params.lse = lse.data();
    run([&](Context& context) { decode_attention(params, context); });
    EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
    return {.out = out.values(), .lse = lse.values()};
  }

  void expect_right(const Shape& shape) {
    SCOPED_TRACE(fmt::format("{} tokens, {} heads on {}, head_dim {}", shape.num_tokens,
                             shape.num_query_heads, shape.num_kv_heads, shape.head_dim));
    const Problem problem(shape);
    const Output reference = problem.on_host(ref::decode_attention);
    const Output naive = problem.on_host(naive::decode_attention);
    const auto judge = [&](const Output& actual) {
      EXPECT_TRUE(test::as_good_as_naive(actual.out, naive.out, reference.out, kOutAtol));
      EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, kLseAtol));
    };
    judge(on_gpu(problem, problem.k, problem.v, DType::kFloat32));
    judge(on_gpu(problem, problem.k16, problem.v16, DType::kBFloat16));
    judge(on_gpu(problem, test::narrow_to_float16(problem.k), test::narrow_to_float16(problem.v),
                 DType::kFloat16));
  }
};

TEST_F(DecodeAttentionTest, IsRightAtEveryLength) {
  for (const int64_t num_tokens : {1, 2, 7, 8, 9, 255, 256, 257, 1000, 3001, 70001}) {
    expect_right({.num_tokens = num_tokens, .num_query_heads = 2, .num_kv_heads = 1});
  }
}

TEST_F(DecodeAttentionTest, IsRightAtEveryHeadDim) {
  for (const int32_t head_dim : {16, 32, 64, 128, 256}) {
    expect_right({.num_tokens = 777, .head_dim = head_dim});
  }
}

TEST_F(DecodeAttentionTest, GivesEachQueryHeadItsKvHead) {
  for (const int32_t ratio : {1, 2, 3, 4, 5, 7, 8}) {
    expect_right(
        {.num_tokens = 600, .num_query_heads = 3 * ratio, .num_kv_heads = 3, .head_dim = 64});
  }
}

TEST_F(DecodeAttentionTest, NoTokensGiveZerosWithoutMass) {
  const Problem problem({.num_tokens = 0, .num_query_heads = 4, .num_kv_heads = 2});
  const Output output = on_gpu(problem, problem.k16, problem.v16, DType::kBFloat16);
  for (const float value : output.out) EXPECT_EQ(value, 0.0F);
  for (const float lse : output.lse) EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
}

TEST_F(DecodeAttentionTest, TwoRunsGiveTheSameBits) {
  const Problem problem({.num_tokens = 9001, .num_query_heads = 8, .num_kv_heads = 2});
  const Output first = on_gpu(problem, problem.k16, problem.v16, DType::kBFloat16);
  const Output second = on_gpu(problem, problem.k16, problem.v16, DType::kBFloat16);
  EXPECT_TRUE(test::bitwise_equal(first.out, second.out));
  EXPECT_TRUE(test::bitwise_equal(first.lse, second.lse));
}

}  // namespace
}  // namespace millrace::kernels::cuda
