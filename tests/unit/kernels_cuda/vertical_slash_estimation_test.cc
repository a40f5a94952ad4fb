// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/cuda/sm90/operations.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

struct Sums {
  // Drawn from `num_values` values: few make most decisions ties.
  Sums(int64_t tokens, int64_t num_heads, uint64_t seed, uint64_t num_values) : num_tokens(tokens) {
    for (int64_t i = 0; i < num_heads * tokens; ++i) {
      const auto index = static_cast<uint64_t>(i);
      columns.push_back(0.01F * static_cast<float>(test::random_bits(seed, index) % num_values));
      diagonals.push_back(0.01F *
                          static_cast<float>(test::random_bits(seed + 1, index) % num_values));
    }
  }

  int64_t num_tokens;
  std::vector<float> columns;
  std::vector<float> diagonals;
};

class VerticalSlashEstimation : public GpuCase {
 protected:
  void expect_lists_of_the_cpu(const Sums& sums, const std::vector<int32_t>& heads,
                               const std::vector<VerticalSlashBudget>& budgets,
                               const IndexShape& shape) {
    SCOPED_TRACE(testing::Message()
                 << sums.num_tokens << " tokens, " << shape.max_bands << " bands");
    IndexStorage expected(shape);
    VerticalSlashParams params = {.column_sums = sums.columns.data(),
                                  .diagonal_sums = sums.diagonals.data(),
                                  .num_tokens = sums.num_tokens,
                                  .heads = heads,
                                  .budgets = budgets,
                                  .index = expected.view()};
    cpu::build_vertical_slash(params, {.num_threads = 4});
    const DeviceArray<float> columns(sums.columns);
    const DeviceArray<float> diagonals(sums.diagonals);
    DeviceIndex actual(shape);
    params.column_sums = columns.data();
    params.diagonal_sums = diagonals.data();
    params.index = actual.view();
    run([&](Context& context) { build_vertical_slash(params, context); });
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      EXPECT_EQ(actual.lists(head), expected.lists(head)) << "head " << head;
    }
    EXPECT_TRUE(actual.guards_intact());
  }
};

IndexShape shape_for(int64_t num_tokens, int32_t max_bands) {
  return {.num_heads = 5, .max_bands = max_bands, .max_columns = static_cast<int32_t>(num_tokens)};
}

TEST_F(VerticalSlashEstimation, ListsAreThoseOfTheCpuWhereMostDecisionsAreTies) {
  for (const int64_t num_tokens : {1, 29, 31, 63, 64, 65, 127, 130, 777, 1024, 3000, 8191}) {
    const Sums sums(num_tokens, 3, static_cast<uint64_t>(num_tokens), 5);
    const std::vector<VerticalSlashBudget> budgets = {{200, 120}, {0, 0}, {1 << 20, 1 << 20}};
    expect_lists_of_the_cpu(sums, {4, 0, 3}, budgets, shape_for(num_tokens, 500));
  }
}

TEST_F(VerticalSlashEstimation, ListsAreThoseOfTheCpuOnDistinctValues) {
  for (const int64_t num_tokens : {100, 4097, 32768, 100003}) {
    const Sums sums(num_tokens, 3, static_cast<uint64_t>(num_tokens), uint64_t{1} << 40);
    const std::vector<VerticalSlashBudget> budgets = {{1000, 6096}, {500, 700}, {3500, 100}};
    expect_lists_of_the_cpu(sums, {1, 2, 4}, budgets, shape_for(num_tokens, 2000));
  }
}

TEST_F(VerticalSlashEstimation, TooManyBandsCloseTheGapsThatTheCpuCloses) {
  for (const int32_t max_bands : {1, 2, 7, 50, 1000}) {
    const Sums sums(200000, 2, 7, uint64_t{1} << 40);
    expect_lists_of_the_cpu(sums, {0, 3}, {{30, 1300}, {30, 160}},
                            shape_for(sums.num_tokens, max_bands));
  }
}

TEST_F(VerticalSlashEstimation, TreatsZerosNegativesAndNotANumberAsTheCpu) {
  Sums sums(5000, 2, 9, 3);
  for (size_t i = 0; i < sums.columns.size(); i += 7) sums.columns[i] = -0.0F;
  for (size_t i = 3; i < sums.columns.size(); i += 11) sums.columns[i] = -1.0F;
  for (size_t i = 5; i < sums.columns.size(); i += 97) sums.columns[i] = std::nanf("");
  std::fill(sums.diagonals.begin() + 200, sums.diagonals.end(), std::nanf(""));
  expect_lists_of_the_cpu(sums, {0, 1}, {{60, 120}, {4000, 3000}}, shape_for(sums.num_tokens, 500));
}

}  // namespace
}  // namespace millrace::kernels::cuda
