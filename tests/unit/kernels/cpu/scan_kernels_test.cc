// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/scan_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

// Equal bits, whatever the instruction set: if a product were fused with the sum, some would round to another step.
TEST(ScanKernels, MassStepsAreThoseOfSingleOperations) {
  std::mt19937 random(8);
  std::uniform_real_distribution<float> real(-1, 1);
  std::uniform_int_distribution<int32_t> whole(-100000, 100000);
  constexpr int32_t kPages = 1000;
  std::vector<float> centre_products, centre_steps, steps;
  std::vector<int32_t> pages, maxima;
  for (int32_t page = 0; page < kPages; ++page) {
    centre_products.push_back(static_cast<float>(whole(random)));
    centre_steps.push_back(real(random));
    steps.push_back(page == 13 ? std::nanf("") : real(random));
    if (page % 3 == 0) continue;
    pages.push_back(page);
    maxima.push_back(whole(random));
  }
  for (const float factor : {0.01F, 0.37F, 16.0F}) {
    const ScannedPages row{.pages = pages.data(),
                           .maxima = maxima.data(),
                           .centre_products = centre_products.data(),
                           .centre_steps = centre_steps.data(),
                           .steps = steps.data(),
                           .factor = factor};
    for (const SimdLevel level : test::simd_levels()) {
      std::vector<float> actual(pages.size());
      scan_kernels(level).mass_steps(row, std::ssize(pages), actual.data());
      for (size_t i = 0; i < pages.size(); ++i) {
        const auto page = static_cast<size_t>(pages[i]);
        // Volatile values are rounded, and not fused with what follows.
        const volatile float of_centre = centre_steps[page] * centre_products[page];
        const volatile float of_best_key = steps[page] * static_cast<float>(maxima[i]);
        const volatile float score = of_centre + of_best_key;
        const volatile float expected = std::nearbyint(score * factor);
        if (page == 13) {
          EXPECT_TRUE(std::isnan(actual[i]));
        } else {
          EXPECT_EQ(actual[i], expected) << simd_level_name(level) << ", page " << page;
        }
      }
    }
  }
}

TEST(ScanKernels, MassStepsRoundHalvesToEven) {
  const std::vector<int32_t> pages = {0, 0, 0, 0}, maxima = {1, 3, 5, -1};
  const float product = 0, step = 1;
  for (const SimdLevel level : test::simd_levels()) {
    std::vector<float> actual(4);
    scan_kernels(level).mass_steps({.pages = pages.data(),
                                    .maxima = maxima.data(),
                                    .centre_products = &product,
                                    .centre_steps = &step,
                                    .steps = &step,
                                    .factor = 0.5F},
                                   4, actual.data());
    EXPECT_EQ(actual, (std::vector<float>{0, 2, 2, 0})) << simd_level_name(level);
  }
}

}  // namespace
}  // namespace millrace::kernels::cpu
