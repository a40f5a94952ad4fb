// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/prefill_curve.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::coordinator {
namespace {

Duration of_seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

TEST(PrefillCurve, WithoutObservationsLongerIsSlower) {
  const PrefillCurve curve;
  for (int64_t n = 1; n < (1 << 22); n *= 2) EXPECT_LT(curve.at(n), curve.at(2 * n)) << n;
  EXPECT_FALSE(curve.least(1000));
}

TEST(PrefillCurve, OneObservationSetsTheScaleOfAllLengths) {
  PrefillCurve curve;
  curve.observe(4096, of_seconds(30));  // a CPU
  EXPECT_NEAR(seconds(curve.at(4096)), 30, 1e-3);
  const double ratio = seconds(PrefillCurve::guess(65536)) / seconds(PrefillCurve::guess(4096));
  EXPECT_NEAR(seconds(curve.at(65536)), 30 * ratio, 0.1);
}

// Times by a law that is not a power, a + b n + c n^2, at four lengths. A chord of it in logarithms
// is off by up to 19 % over a factor of 16 in length.
TEST(PrefillCurve, BetweenObservedLengthsItFollowsThem) {
  const auto law = [](double n) { return 0.05 + 2e-5 * n + 6e-12 * n * n; };
  PrefillCurve curve;
  for (int64_t n : {2048, 32768, 524288, 2097152}) curve.observe(n, of_seconds(law(n)));
  for (int64_t n : {2048, 4096, 8000, 32768, 70000, 131072, 524288, 1000000, 2097152}) {
    EXPECT_NEAR(seconds(curve.at(n)) / law(static_cast<double>(n)), 1, 0.2) << n;
  }
}

TEST(PrefillCurve, WhatShortPromptsTakeDoesNotMoveLongOnes) {
  PrefillCurve curve;
  curve.observe(1 << 20, of_seconds(40));
  for (int i = 0; i < 1000; ++i) curve.observe(1000, of_seconds(0.2));
  EXPECT_NEAR(seconds(curve.at(1 << 20)), 40, 1e-3);
  EXPECT_NEAR(seconds(curve.at(1000)), 0.2, 1e-4);
}

TEST(PrefillCurve, WhatIsForgottenIsOfOneOctave) {
  PrefillCurve curve;
  curve.observe(1000, of_seconds(7));
  curve.observe(1 << 20, of_seconds(40));
  curve.forget(1000);
  EXPECT_NEAR(seconds(curve.at(1 << 20)), 40, 1e-3);
  EXPECT_LT(seconds(curve.at(1000)), 1);
  curve.forget(1 << 20);
  EXPECT_TRUE(curve.empty());
  EXPECT_EQ(curve.at(1000), PrefillCurve::guess(1000));
}

TEST(PrefillCurve, ItFollowsAChangeWithinSomeTenPrefills) {
  PrefillCurve curve;
  for (int i = 0; i < 100; ++i) curve.observe(1000, of_seconds(1));
  for (int i = 0; i < 30; ++i) curve.observe(1000, of_seconds(2));
  // The rest of the old time has a weight of .9^30 = .042 in the logarithm.
  EXPECT_NEAR(seconds(curve.at(1000)), 2 * std::pow(0.5, 0.042), 0.01);
}

TEST(PrefillCurve, TheLeastIsKnownAfterSomePrefillsOfThatLength) {
  PrefillCurve curve;
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(curve.least(1000));
    curve.observe(1000, of_seconds(2));
  }
  ASSERT_TRUE(curve.least(1000));
  EXPECT_NEAR(seconds(*curve.least(1000)), 1, 1e-3);
  EXPECT_FALSE(curve.least(4000));
}

TEST(PrefillCurve, ExtremesStayFinite) {
  PrefillCurve curve;
  curve.observe(1, Duration::zero());
  curve.observe(int64_t{1} << 40, std::chrono::hours(24));
  EXPECT_GT(curve.at(0), Duration::zero());
  EXPECT_TRUE(std::isfinite(seconds(curve.at(int64_t{1} << 45))));
}

}  // namespace
}  // namespace millrace::coordinator
