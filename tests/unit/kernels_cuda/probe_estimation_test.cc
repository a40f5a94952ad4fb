#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

// Of what our results differ from the obvious float32 loop by design: powers of two to 2^-22 of
// themselves (ex2.approx), in sums up to 64.
constexpr double kExpError = 64.0 / (1 << 22);

struct Sums {
  Sums(const EstimationCase& c, size_t num_heads)
      : columns(num_heads * static_cast<size_t>(c.shape().num_tokens)),
        diagonals(columns.size()),
        lse(num_heads * static_cast<size_t>(std::min(kLastRows, c.shape().num_tokens))) {}

  std::vector<float> columns;
  std::vector<float> diagonals;
  std::vector<float> lse;
};

Sums reference_probe(EstimationCase& c, std::span<const int32_t> heads) {
  Sums sums(c, heads.size());
  ref::probe({.last = c.last(),
              .kv = c.kv(),
              .heads = heads,
              .column_sums = sums.columns.data(),
              .diagonal_sums = sums.diagonals.data(),
              .lse = sums.lse.data()});
  return sums;
}

// The obvious loops in float32, on the values the kernels read.
Sums naive_probe(EstimationCase& c, std::span<const int32_t> heads) {
  const EstimationShape& shape = c.shape();
  const LastRows last = c.last();
  Sums sums(c, heads.size());
  for (size_t h = 0; h < heads.size(); ++h) {
    const int32_t kv_head = heads[h] / (shape.num_query_heads / shape.num_kv_heads);
    const auto value = [](float x) { return to_float(to_bfloat16(x)); };
    for (int64_t r = 0; r < last.num_rows; ++r) {
      const int64_t position = last.first_position + r;
      std::vector<float> scores;
      for (int64_t j = 0; j <= position; ++j) {
        float score = 0;
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          score += value(c.q(position, heads[h], d)) * value(c.k(kv_head, j, d));
        }
        scores.push_back(last.scale * score);
      }
      const float maximum = *std::max_element(scores.begin(), scores.end());
      float sum = 0;
      for (const float s : scores) sum += std::exp(s - maximum);
      const float lse = maximum + std::log(sum);
      sums.lse[h * static_cast<size_t>(last.num_rows) + static_cast<size_t>(r)] = lse;
      for (int64_t j = 0; j <= position; ++j) {
        const float p = std::exp(scores[static_cast<size_t>(j)] - lse);
        const auto first = static_cast<int64_t>(h) * shape.num_tokens;
        sums.columns[static_cast<size_t>(first + j)] += p;
        sums.diagonals[static_cast<size_t>(first + position - j)] += p;
      }
    }
  }
  return sums;
}

class ProbeEstimation : public GpuCase {
 protected:
  Sums probe_on_gpu(EstimationCase& c, const std::vector<int32_t>& heads) {
    const DeviceLayer layer(c);
    const Sums shape(c, heads.size());
    DeviceArray<float> columns(std::ssize(shape.columns));
    DeviceArray<float> diagonals(std::ssize(shape.diagonals));
    DeviceArray<float> lse(std::ssize(shape.lse));
    run([&](Context& context) {
      probe({.last = layer.last(),
             .kv = layer.kv(),
             .heads = heads,
             .column_sums = columns.data(),
             .diagonal_sums = diagonals.data(),
             .lse = lse.data()},
            context);
    });
    EXPECT_TRUE(columns.guards_intact() && diagonals.guards_intact() && lse.guards_intact());
    Sums sums = shape;
    sums.columns = columns.values();
    sums.diagonals = diagonals.values();
    sums.lse = lse.values();
    return sums;
  }

  void expect_as_good_as_naive(const EstimationShape& shape) {
    SCOPED_TRACE(testing::Message()
                 << shape.num_tokens << " tokens, " << shape.num_query_heads << " heads over "
                 << shape.num_kv_heads << ", head_dim " << shape.head_dim);
    EstimationCase c(shape, 11);
    std::vector<int32_t> heads = c.all_heads();
    std::reverse(heads.begin(), heads.end());
    const Sums reference = reference_probe(c, heads);
    const Sums naive = naive_probe(c, heads);
    const Sums actual = probe_on_gpu(c, heads);
    EXPECT_TRUE(
        test::as_good_as_naive(actual.columns, naive.columns, reference.columns, kExpError));
    EXPECT_TRUE(
        test::as_good_as_naive(actual.diagonals, naive.diagonals, reference.diagonals, kExpError));
    // Rounding of a stored log-sum-exp of magnitude up to 16.
    EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, 1e-6));
  }
};

TEST_F(ProbeEstimation, IsAsGoodAsTheNaiveLoopAtTileAndChunkBorders) {
  for (const int64_t num_tokens :
       {1, 2, 63, 64, 65, 127, 128, 130, 1000, 1023, 1024, 1025, 1087, 1088, 1089, 2111, 4099}) {
    expect_as_good_as_naive({.num_tokens = num_tokens, .head_dim = 64, .dtype = DType::kBFloat16});
  }
}

TEST_F(ProbeEstimation, IsAsGoodAsTheNaiveLoopForEveryShapeOfHeads) {
  for (const auto& [queries, kvs] : std::vector<std::pair<int, int>>{
           {1, 1}, {3, 3}, {2, 1}, {6, 2}, {8, 2}, {5, 1}, {14, 2}, {8, 1}}) {
    for (const int32_t head_dim : {64, 128}) {
      expect_as_good_as_naive({.num_tokens = 1150,
                               .num_query_heads = queries,
                               .num_kv_heads = kvs,
                               .head_dim = head_dim,
                               .dtype = DType::kBFloat16});
    }
  }
}

TEST_F(ProbeEstimation, IsAsGoodAsTheNaiveLoopOnALongPrompt) {
  expect_as_good_as_naive({.num_tokens = 8191,
                           .num_query_heads = 2,
                           .num_kv_heads = 1,
                           .head_dim = 128,
                           .dtype = DType::kBFloat16});
}

TEST_F(ProbeEstimation, GivesTheSameBitsInEveryRunAndForAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 4500,
                    .num_query_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = 128,
                    .dtype = DType::kBFloat16},
                   12);
  const Sums all = probe_on_gpu(c, c.all_heads());
  const Sums again = probe_on_gpu(c, c.all_heads());
  EXPECT_TRUE(test::bitwise_equal(again.columns, all.columns));
  EXPECT_TRUE(test::bitwise_equal(again.diagonals, all.diagonals));
  EXPECT_TRUE(test::bitwise_equal(again.lse, all.lse));
  for (const int32_t head : c.all_heads()) {
    const Sums one = probe_on_gpu(c, {head});
    const auto part = [head](const std::vector<float>& values, size_t count) {
      return std::span(values).subspan(static_cast<size_t>(head) * count, count);
    };
    EXPECT_TRUE(test::bitwise_equal(one.columns, part(all.columns, 4500)));
    EXPECT_TRUE(test::bitwise_equal(one.diagonals, part(all.diagonals, 4500)));
    EXPECT_TRUE(test::bitwise_equal(one.lse, part(all.lse, 64)));
  }
}

TEST_F(ProbeEstimation, ExtremeScoresNeitherOverflowNorVanish) {
  EstimationCase c({.num_tokens = 300, .head_dim = 64, .dtype = DType::kBFloat16}, 15);
  for (int64_t row = 236; row < 300; ++row) {
    for (int32_t d = 0; d < 64; ++d) c.q(row, 0, d) = 64;
  }
  for (int32_t d = 0; d < 64; ++d) c.k(0, 17, d) = 64;  // score 32,768; others within 500
  const Sums sums = probe_on_gpu(c, {0});
  EXPECT_FLOAT_EQ(sums.columns[17], 64);
  for (size_t r = 0; r < 64; ++r) EXPECT_FLOAT_EQ(sums.diagonals[236 + r - 17], 1);
}

}  // namespace
}  // namespace millrace::kernels::cuda
