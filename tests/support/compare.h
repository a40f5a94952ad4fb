// The one rule by which tests judge floating-point results (docs/numerics.md):
//
//   max |actual - reference| <= 2 * max |naive - reference| + atol
//
// with NaN and infinity at the same places in all three. `reference` comes from kernels/ref in
// double on the same (already rounded) inputs, stored as float32; `naive` from the obvious loop in
// the precision under test. So the tolerance follows from the shape and the data instead of from
// what happens to pass; `atol` is what a naive loop cannot show (the rounding of the stored
// reference; an approximation the kernel makes on purpose) and has its reason beside it in the
// test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

namespace millrace::test {

// The largest absolute difference and where it is; pairs of equal infinities or of NaNs count as 0,
// a mismatch of those as infinity.
struct MaxError {
  double value = 0;
  int64_t index = -1;
};
MaxError max_error(std::span<const float> actual, std::span<const float> reference);

// Half a float32 ulp of the largest reference value: the error of storing the reference itself, and
// the usual atol.
double float32_rounding(std::span<const float> reference);

testing::AssertionResult as_good_as_naive(std::span<const float> actual,
                                          std::span<const float> naive,
                                          std::span<const float> reference, double atol);

// For results without a meaningful naive form (an exact answer is known).
testing::AssertionResult within(std::span<const float> actual, std::span<const float> reference,
                                double atol);

// Where two runs promise the same bits; NaNs compare by their bits too.
testing::AssertionResult bitwise_equal(std::span<const float> actual,
                                       std::span<const float> expected);

}  // namespace millrace::test
