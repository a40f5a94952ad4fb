// SPDX-License-Identifier: Apache-2.0
#include "tests/support/compare.h"

#include <limits>
#include <vector>

#include "tests/support/guarded_buffer.h"

namespace millrace::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Values = std::vector<float>;

TEST(Compare, AllowsTwiceTheNaiveErrorAndNoMore) {
  const Values reference = {1, 2};
  const Values naive = {1, 2.25};
  EXPECT_TRUE(as_good_as_naive(Values{1.5, 2}, naive, reference, 0));
  EXPECT_FALSE(as_good_as_naive(Values{1.625, 2}, naive, reference, 0));
  EXPECT_TRUE(as_good_as_naive(Values{1.625, 2}, naive, reference, 0.125));
}

TEST(Compare, NanAndInfinityMustBeAtTheSamePlaces) {
  EXPECT_TRUE(within(Values{kNan, kInf, -kInf}, Values{kNan, kInf, -kInf}, 0));
  EXPECT_FALSE(within(Values{0}, Values{kNan}, 1e30));
  EXPECT_FALSE(within(Values{kNan}, Values{0}, 1e30));
  EXPECT_FALSE(within(Values{1}, Values{kInf}, 1e30));
  EXPECT_FALSE(within(Values{kInf}, Values{-kInf}, 1e30));
}

TEST(Compare, AWrongNaiveResultDoesNotWidenTheTolerance) {
  EXPECT_FALSE(as_good_as_naive(Values{5}, Values{kNan}, Values{0}, 0));
}

TEST(Compare, SizesMustAgree) {
  EXPECT_FALSE(within(Values{1}, Values{1, 2}, 0));
  EXPECT_FALSE(bitwise_equal(Values{1, 2}, Values{1}));
}

TEST(Compare, BitwiseTellsZerosApart) {
  EXPECT_TRUE(bitwise_equal(Values{kNan, 0.0F}, Values{kNan, 0.0F}));
  EXPECT_FALSE(bitwise_equal(Values{-0.0F}, Values{0.0F}));
}

TEST(GuardedBuffer, SeesAWriteOnEitherSide) {
  GuardedBuffer<float> buffer(3);
  buffer.span()[0] = buffer.span()[2] = 1;
  EXPECT_TRUE(buffer.guards_intact());
  buffer.data()[3] = 0;
  EXPECT_FALSE(buffer.guards_intact());
  GuardedBuffer<float> other(3);
  other.data()[-1] = 0;
  EXPECT_FALSE(other.guards_intact());
}

}  // namespace
}  // namespace millrace::test
