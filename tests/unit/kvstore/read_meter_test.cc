// SPDX-License-Identifier: Apache-2.0
// How many bytes a second a slow tier is believed to deliver.

#include "kvstore/kept/read_meter.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace millrace::kvstore {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

class ReadMeterTest : public ::testing::Test {
 protected:
  void read(int64_t bytes, Duration took) {
    meter_.begin();
    clock_.advance(took);
    meter_.end(bytes);
  }

  testing::FakeClock clock_;
  ReadMeter meter_{clock_};
};

TEST_F(ReadMeterTest, BeginsWithAGuess) {
  EXPECT_DOUBLE_EQ(meter_.bytes_per_s(), kUnmeasuredBytesPerS);
}

// A second is two lifetimes of its memory: exp(-2) = 0.135 of the guess is left.
TEST_F(ReadMeterTest, FollowsWhatIsMeasured) {
  read(100'000'000, seconds(1));
  EXPECT_NEAR(meter_.bytes_per_s(), 1e8 + 0.1353 * 9e8, 1e6);
  for (int i = 0; i < 10; ++i) read(100'000'000, seconds(1));
  EXPECT_NEAR(meter_.bytes_per_s(), 1e8, 1e3);
}

TEST_F(ReadMeterTest, AShortReadSaysLittle) {
  read(0, milliseconds(1));
  EXPECT_GT(meter_.bytes_per_s(), 0.99 * kUnmeasuredBytesPerS);
}

TEST_F(ReadMeterTest, ReadsAtOnceCountTogether) {
  for (int i = 0; i < 20; ++i) {
    meter_.begin();
    meter_.begin();
    clock_.advance(seconds(1));
    meter_.end(100'000'000);
    meter_.end(100'000'000);
  }
  EXPECT_NEAR(meter_.bytes_per_s(), 2e8, 1e4);
}

TEST_F(ReadMeterTest, TimeBetweenReadsDoesNotCount) {
  for (int i = 0; i < 100; ++i) {
    read(1'000'000'000, seconds(1));
    clock_.advance(seconds(1));
  }
  EXPECT_NEAR(meter_.bytes_per_s(), 1e9, 1e7);
}

TEST_F(ReadMeterTest, OneThatBringsNothingIsSlowAndNotStill) {
  for (int i = 0; i < 10; ++i) read(0, seconds(60));
  EXPECT_GT(meter_.bytes_per_s(), 0);
  EXPECT_LT(meter_.bytes_per_s(), 1e7);
}

TEST_F(ReadMeterTest, AReadThatTakesNoTimeSaysNothing) {
  read(100, Duration::zero());
  EXPECT_DOUBLE_EQ(meter_.bytes_per_s(), kUnmeasuredBytesPerS);
}

TEST_F(ReadMeterTest, WhatWasNotMeasuredOfLateIsBelievedToBeFaster) {
  for (int i = 0; i < 20; ++i) read(100'000'000, seconds(1));
  clock_.advance(minutes(5));
  EXPECT_NEAR(meter_.bytes_per_s(), 2e8, 1e3);
  clock_.advance(minutes(5));
  EXPECT_NEAR(meter_.bytes_per_s(), 4e8, 1e3);
  clock_.advance(minutes(500));
  EXPECT_NEAR(meter_.bytes_per_s(), 16e9, 1);
  read(100'000'000'000'000, seconds(100));
  clock_.advance(minutes(500));
  EXPECT_NEAR(meter_.bytes_per_s(), 1e12, 1e3) << "never less than was measured";
}

}  // namespace
}  // namespace millrace::kvstore
