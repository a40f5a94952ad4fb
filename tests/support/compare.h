// SPDX-License-Identifier: Apache-2.0
// The one rule by which tests judge floating-point results (docs/numerics.md):
//
//   max |actual - reference| <= 2 * max |naive - reference| + atol
//
// with NaN and infinity at the same places in all three. `reference` comes from kernels/ref in
// double on the same (already rounded) inputs, stored as float32. `naive` comes from the obvious
// loop in the precision under test. So the tolerance follows from the shape and the data, instead
// of from what happens to pass. `atol` covers what a naive loop cannot show (the rounding of the
// stored reference; an approximation that the kernel makes on purpose); the test states its reason
// next to it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

namespace millrace::test {

// The largest absolute difference and its place. Pairs of equal infinities or of NaNs count as 0,
// other pairs with an infinity or a NaN as infinity.
struct MaxError {
  double value = 0;
  int64_t index = -1;
};
MaxError max_error(std::span<const float> actual, std::span<const float> reference);

// Half a float32 ulp of the largest reference value: the error from storing the reference, and the
// usual atol.
double float32_rounding(std::span<const float> reference);

testing::AssertionResult as_good_as_naive(std::span<const float> actual,
                                          std::span<const float> naive,
                                          std::span<const float> reference, double atol);

// For results without a meaningful naive form, where an exact answer is known.
testing::AssertionResult within(std::span<const float> actual, std::span<const float> reference,
                                double atol);

// For two runs that promise the same bits. NaNs are compared by their bits too.
testing::AssertionResult bitwise_equal(std::span<const float> actual,
                                       std::span<const float> expected);

}  // namespace millrace::test
