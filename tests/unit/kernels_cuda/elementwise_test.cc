// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/elementwise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

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
using test::bitwise_equal;
using test::float32_rounding;

constexpr int64_t kRowCounts[] = {1, 2, 65};
// One vector, part of a warp, the widths of models, and the widest row that a block holds.
constexpr int64_t kWidths[] = {8, 64, 896, 4096, 14336, 16384};

class ElementwiseTest : public GpuCase {
 protected:
  // Runs `operation` for every output type with rows `padding` apart, against the float32 reference
  // and a naive float32 loop. The gaps and the guards must stay untouched, and two runs must give
  // the same bits.
  template <typename Params>
  void expect_as_good_as_naive(Params params, const Params& host_params, int64_t rows, int64_t cols,
                               int64_t padding, void (*reference_operation)(const Params&),
                               void (*naive_operation)(const Params&),
                               void (*operation)(const Params&, Context&)) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    const int64_t stride = cols + padding;
    std::vector<float> reference(rows * stride, -1);
    Params on_host = host_params;
    on_host.out = {reference.data(), DType::kFloat32, rows, cols, stride};
    reference_operation(on_host);
    std::vector<float> naive(rows * stride, -1);
    on_host.out.data = naive.data();
    naive_operation(on_host);
    const double atol = float32_rounding(reference);

    DeviceArray<float> f32(std::vector<float>(rows * stride, -1));
    params.out = {f32.data(), DType::kFloat32, rows, cols, stride};
    run([&](Context& context) { operation(params, context); });
    EXPECT_TRUE(as_good_as_naive(f32.values(), naive, reference, atol));
    EXPECT_TRUE(f32.guards_intact());
    const auto first = f32.values();
    run([&](Context& context) { operation(params, context); });
    EXPECT_TRUE(bitwise_equal(f32.values(), first));

    DeviceArray<BFloat16> bf16(std::vector<BFloat16>(rows * stride, to_bfloat16(-1)));
    params.out = {bf16.data(), DType::kBFloat16, rows, cols, stride};
    run([&](Context& context) { operation(params, context); });
    EXPECT_TRUE(as_good_as_naive(test::widen(bf16.values()), test::widen(test::narrow(naive)),
                                 reference, atol));
    EXPECT_TRUE(bf16.guards_intact());

    DeviceArray<Float16> f16(std::vector<Float16>(rows * stride, to_float16(-1)));
    params.out = {f16.data(), DType::kFloat16, rows, cols, stride};
    run([&](Context& context) { operation(params, context); });
    EXPECT_TRUE(as_good_as_naive(test::widen(f16.values()),
                                 test::widen(test::narrow_to_float16(naive)), reference, atol));
    EXPECT_TRUE(f16.guards_intact());
  }
};

TEST_F(ElementwiseTest, EmbedCopiesTheRowsOfTheTokens) {
  constexpr int64_t kVocabulary = 71;
  constexpr int64_t kStride = 904;
  const std::vector<float> f32 = test::random_normals(1, kVocabulary * kStride);
  const std::vector<BFloat16> bf16 = test::narrow(f32);
  std::vector<Float16> f16(f32.size());
  for (size_t i = 0; i < f16.size(); ++i) f16[i].bits = test::random_bits(2, i) & 0xbfff;  // no NaN
  const DeviceArray<float> f32_table(f32);
  const DeviceArray<BFloat16> bf16_table(bf16);
  const DeviceArray<Float16> f16_table(f16);
  struct Table {
    const void* host;
    const void* device;
    DType dtype;
  };
  const Table tables[] = {{f32.data(), f32_table.data(), DType::kFloat32},
                          {bf16.data(), bf16_table.data(), DType::kBFloat16},
                          {f16.data(), f16_table.data(), DType::kFloat16}};
  std::vector<int32_t> tokens;
  for (int i = 0; i < 1031; ++i) tokens.push_back(test::random_bits(3, i) % kVocabulary);
  const DeviceArray<int32_t> device_tokens(tokens);

  for (const Table& table : tables) {
    for (int64_t cols : {8, 64, 896}) {
      const int64_t count = std::ssize(tokens) * cols;
      std::vector<float> expected(count);
      ref::embed({.token_ids = tokens.data(),
                  .num_rows = std::ssize(tokens),
                  .table = {table.host, table.dtype, kVocabulary, cols, kStride},
                  .hidden = expected.data()});
      DeviceArray<float> hidden(count);
      run([&](Context& context) {
        embed({.token_ids = device_tokens.data(),
               .num_rows = std::ssize(tokens),
               .table = {table.device, table.dtype, kVocabulary, cols, kStride},
               .hidden = hidden.data()},
              context);
      });
      EXPECT_TRUE(bitwise_equal(hidden.values(), expected)) << dtype_name(table.dtype);
      EXPECT_TRUE(hidden.guards_intact());
    }
  }
}

TEST_F(ElementwiseTest, RmsNormMatchesReference) {
  constexpr float kEps = 1e-5F;
  for (const int64_t rows : kRowCounts) {
    for (const int64_t cols : kWidths) {
      const auto x = test::random_normals(1, rows * cols, 3.0F);
      const auto weight = test::random_normals(2, cols);
      const DeviceArray<float> device_x(x);
      const DeviceArray<float> device_weight(weight);
      const RmsNormParams host = {.x = x.data(), .weight = weight.data(), .eps = kEps, .out = {}};
      const RmsNormParams device = {
          .x = device_x.data(), .weight = device_weight.data(), .eps = kEps, .out = {}};
      expect_as_good_as_naive<RmsNormParams>(device, host, rows, cols, /*padding=*/8, ref::rms_norm,
                                             naive::rms_norm, rms_norm);
    }
  }
}

TEST_F(ElementwiseTest, RmsNormMayWriteOverItsInput) {
  for (const int64_t cols : kWidths) {
    const auto x = test::random_normals(1, 65 * cols, 3.0F);
    const DeviceArray<float> device_x(x), weight(test::random_normals(2, cols));
    DeviceArray<float> apart(65 * cols), over(x);
    const auto normalise = [&](const float* from, float* to) {
      run([&](Context& context) {
        rms_norm({.x = from,
                  .weight = weight.data(),
                  .eps = 1e-5F,
                  .out = dense_matrix(to, DType::kFloat32, 65, cols)},
                 context);
      });
    };
    normalise(device_x.data(), apart.data());
    normalise(over.data(), over.data());
    EXPECT_TRUE(bitwise_equal(over.values(), apart.values())) << cols;
    EXPECT_TRUE(over.guards_intact());
  }
}

TEST_F(ElementwiseTest, AddAddsEachElementOnce) {
  for (int64_t count : {1, 3, 4, 5, 1023, 1025, 100003}) {
    const auto x = test::random_normals(1, count);
    const auto y = test::random_normals(2, count);
    auto expected = x;
    ref::add({.x = expected.data(), .y = y.data(), .count = count});
    DeviceArray<float> sum(x);
    const DeviceArray<float> other(y);
    run([&](Context& context) {
      add({.x = sum.data(), .y = other.data(), .count = count}, context);
    });
    EXPECT_TRUE(bitwise_equal(sum.values(), expected)) << count;
    EXPECT_TRUE(sum.guards_intact());
  }
}

TEST_F(ElementwiseTest, NoRowsAreNoWork) {
  run([](Context& context) {
    rms_norm({.out = {nullptr, DType::kFloat32, 0, 64, 64}}, context);
    embed({.num_rows = 0, .table = {nullptr, DType::kBFloat16, 10, 64, 64}}, context);
    add({}, context);
  });
}

}  // namespace
}  // namespace millrace::kernels::cuda
