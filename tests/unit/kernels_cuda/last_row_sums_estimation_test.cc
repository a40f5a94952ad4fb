// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cuda/sm90/operations.h"
#include "tests/unit/kernels/estimation/last_row_sums_case.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

// How far our results may be from the obvious float32 loop by design: powers of two are accurate to
// 2^-22 of themselves (ex2.approx), in sums of up to 64.
constexpr double kExpError = 64.0 / (1 << 22);

class LastRowSumsEstimation : public GpuCase {
 protected:
  LastRowSums sums_on_gpu(EstimationCase& c, const std::vector<int32_t>& heads) {
    const DeviceLayer layer(c);
    const LastRowSums shape(c, heads.size());
    DeviceArray<float> columns(std::ssize(shape.columns));
    DeviceArray<float> diagonals(std::ssize(shape.diagonals));
    DeviceArray<float> lse(std::ssize(shape.lse));
    run([&](Context& context) {
      last_row_sums({.last = layer.last(),
                     .kv = layer.kv(),
                     .heads = heads,
                     .column_sums = columns.data(),
                     .diagonal_sums = diagonals.data(),
                     .lse = lse.data()},
                    context);
    });
    EXPECT_TRUE(columns.guards_intact() && diagonals.guards_intact() && lse.guards_intact());
    LastRowSums sums = shape;
    sums.columns = columns.values();
    sums.diagonals = diagonals.values();
    sums.lse = lse.values();
    return sums;
  }

  void expect_right(const EstimationShape& shape) {
    SCOPED_TRACE(testing::Message()
                 << shape.num_tokens << " tokens, " << shape.num_query_heads << " heads over "
                 << shape.num_kv_heads << ", head_dim " << shape.head_dim);
    EstimationCase c(shape, 11);
    std::vector<int32_t> heads = c.all_heads();
    std::reverse(heads.begin(), heads.end());
    expect_as_good_as_naive(sums_on_gpu(c, heads), naive_sums(c, heads), reference_sums(c, heads),
                            kExpError);
  }
};

class LastRowSumsEstimationIn : public LastRowSumsEstimation,
                                public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(LastRowSumsEstimationIn);

TEST_P(LastRowSumsEstimationIn, IsAsGoodAsTheNaiveLoopAtTileAndChunkBorders) {
  for (const int64_t num_tokens :
       {1, 2, 63, 64, 65, 127, 128, 130, 1000, 1023, 1024, 1025, 1087, 1088, 1089, 2111, 4099}) {
    for (const int32_t head_dim : {64, 256}) {
      expect_right({.num_tokens = num_tokens, .head_dim = head_dim, .dtype = GetParam()});
    }
  }
}

TEST_P(LastRowSumsEstimationIn, IsAsGoodAsTheNaiveLoopForEveryShapeOfHeads) {
  for (const auto& [queries, kvs] : std::vector<std::pair<int, int>>{
           {1, 1}, {3, 3}, {2, 1}, {6, 2}, {8, 2}, {5, 1}, {14, 2}, {8, 1}}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      expect_right({.num_tokens = 1150,
                    .num_query_heads = queries,
                    .num_kv_heads = kvs,
                    .head_dim = head_dim,
                    .dtype = GetParam()});
    }
  }
}

TEST_P(LastRowSumsEstimationIn, IsAsGoodAsTheNaiveLoopOnALongPrompt) {
  expect_right({.num_tokens = 8191,
                .num_query_heads = 2,
                .num_kv_heads = 1,
                .head_dim = 256,
                .dtype = GetParam()});
}

TEST_F(LastRowSumsEstimation, GivesTheSameBitsInEveryRunAndForAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 4500,
                    .num_query_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = 128,
                    .dtype = DType::kBFloat16},
                   12);
  const LastRowSums all = sums_on_gpu(c, c.all_heads());
  expect_same_bits(sums_on_gpu(c, c.all_heads()), all);
  for (const int32_t head : c.all_heads()) {
    expect_same_bits(sums_on_gpu(c, {head}), all.part_of_head(static_cast<size_t>(head)));
  }
}

TEST_F(LastRowSumsEstimation, ExtremeScoresNeitherOverflowNorVanish) {
  EstimationCase c({.num_tokens = 300, .head_dim = 64, .dtype = DType::kBFloat16}, 15);
  for (int64_t row = 236; row < 300; ++row) {
    for (int32_t d = 0; d < 64; ++d) c.q(row, 0, d) = 64;
  }
  for (int32_t d = 0; d < 64; ++d) c.k(0, 17, d) = 64;  // score 32,768; others within 500
  const LastRowSums sums = sums_on_gpu(c, {0});
  EXPECT_FLOAT_EQ(sums.columns[17], 64);
  for (size_t r = 0; r < 64; ++r) EXPECT_FLOAT_EQ(sums.diagonals[236 + r - 17], 1);
}

}  // namespace
}  // namespace millrace::kernels::cuda
