// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/scan_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/unit/kernels/contexts.h"

namespace millrace::kernels::cpu {
namespace {

// Sums of integers: equal, whatever the instruction set.
TEST(ScanKernels, MaximaAndProductsAreThoseOfPlainSums) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> byte(-127, 127);
  for (const int64_t dim : {4, 40, 64, 128, 256}) {
    std::vector<int8_t> rows(static_cast<size_t>(13 * dim)), keys(static_cast<size_t>(64 * dim));
    for (auto& x : rows) x = static_cast<int8_t>(byte(random));
    for (auto& x : keys) x = static_cast<int8_t>(byte(random));
    std::fill_n(rows.begin(), dim, int8_t{127});  // the largest sums there are
    std::fill_n(rows.begin() + dim, dim, int8_t{-127});
    for (int64_t d = 0; d < dim; ++d) keys[static_cast<size_t>(scan_offset(5, d))] = -127;
    std::vector<int32_t> sums(64);
    for (int64_t key = 0; key < 64; ++key) {
      for (int64_t d = 0; d < dim; ++d) {
        sums[static_cast<size_t>(key)] += keys[static_cast<size_t>(scan_offset(key, d))];
      }
    }
    const ScanPage page{.keys = keys.data(), .sums = sums.data(), .dim = dim};
    for (const SimdLevel level : test::simd_levels()) {
      const ScanKernels& kernels = scan_kernels(level);
      std::vector<int32_t> maxima(13 * 2);
      kernels.maxima(rows.data(), 13, page, maxima.data(), 2);
      for (int64_t r = 0; r < 13; ++r) {
        std::vector<int32_t> expected(64);
        for (int64_t key = 0; key < 64; ++key) {
          for (int64_t d = 0; d < dim; ++d) {
            expected[static_cast<size_t>(key)] += rows[static_cast<size_t>(r * dim + d)] *
                                                  keys[static_cast<size_t>(scan_offset(key, d))];
          }
        }
        std::vector<int32_t> products(64);
        kernels.products(rows.data() + r * dim, page, products.data());
        EXPECT_EQ(products, expected) << simd_level_name(level) << ", " << dim << " channels";
        EXPECT_EQ(maxima[static_cast<size_t>(2 * r)],
                  *std::max_element(expected.begin(), expected.end()));
      }
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cpu
