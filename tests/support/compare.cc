// SPDX-License-Identifier: Apache-2.0
#include "tests/support/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace millrace::test {
namespace {

double difference(float a, float b) {
  if (std::isnan(a) && std::isnan(b)) return 0;
  if (a == b) return 0;  // includes equal infinities
  const double delta = std::abs(static_cast<double>(a) - static_cast<double>(b));
  return std::isnan(delta) ? std::numeric_limits<double>::infinity() : delta;
}

testing::AssertionResult sizes_differ(size_t actual, size_t expected) {
  return testing::AssertionFailure() << actual << " values, expected " << expected;
}

}  // namespace

MaxError max_error(std::span<const float> actual, std::span<const float> reference) {
  MaxError worst;
  for (size_t i = 0; i < actual.size() && i < reference.size(); ++i) {
    const double delta = difference(actual[i], reference[i]);
    if (worst.index < 0 || delta > worst.value) worst = {delta, static_cast<int64_t>(i)};
  }
  return worst;
}

double float32_rounding(std::span<const float> reference) {
  double largest = 0;
  for (float value : reference) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(double{value}));
  }
  return largest * 0x1p-24;
}

testing::AssertionResult as_good_as_naive(std::span<const float> actual,
                                          std::span<const float> naive,
                                          std::span<const float> reference, double atol) {
  if (actual.size() != reference.size()) return sizes_differ(actual.size(), reference.size());
  if (naive.size() != reference.size()) return sizes_differ(naive.size(), reference.size());
  const MaxError naive_error = max_error(naive, reference);
  if (std::isinf(naive_error.value)) {
    return testing::AssertionFailure()
           << "the naive result itself is off at [" << naive_error.index
           << "]: " << naive[naive_error.index] << ", reference " << reference[naive_error.index];
  }
  const MaxError error = max_error(actual, reference);
  const double allowed = 2 * naive_error.value + atol;
  if (error.value <= allowed) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "error " << error.value << " at [" << error.index << "] (" << actual[error.index]
         << ", reference " << reference[error.index] << "), allowed " << allowed
         << " = 2 * naive error " << naive_error.value << " + " << atol;
}

testing::AssertionResult within(std::span<const float> actual, std::span<const float> reference,
                                double atol) {
  return as_good_as_naive(actual, reference, reference, atol);
}

testing::AssertionResult bitwise_equal(std::span<const float> actual,
                                       std::span<const float> expected) {
  if (actual.size() != expected.size()) return sizes_differ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<uint32_t>(actual[i]) != std::bit_cast<uint32_t>(expected[i])) {
      return testing::AssertionFailure()
             << "[" << i << "] is " << actual[i] << ", expected the bits of " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace millrace::test
