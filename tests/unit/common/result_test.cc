// SPDX-License-Identifier: Apache-2.0
#include "common/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace millrace {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return error(Errc::kInvalidArgument, "{} is odd", number);
  return number / 2;
}
Result<int> quarter(int number) {
  MR_ASSIGN_OR_RETURN(const int halved, half(number));
  MR_ASSIGN_OR_RETURN(const int quartered, half(halved));
  return quartered;
}
Result<void> check_even(int number) {
  MR_RETURN_IF_ERROR(half(number));
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(*half(4), 2);
  EXPECT_FALSE(half(3).ok());
  EXPECT_EQ(half(3).error().message, "3 is odd");
}

TEST(Result, MacrosHandErrorsUp) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(5).error().code, Errc::kInvalidArgument);
}

TEST(Result, CarriesMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, ErrorTextNamesCodeMessageFileAndLine) {
  const std::string text = half(3).error().to_string();
  EXPECT_TRUE(text.starts_with("invalid_argument: 3 is odd (result_test.cc:")) << text;
}

TEST(Result, ValueOfAnErrorAborts) {
  EXPECT_DEATH((void)half(3).value(), "3 is odd");
}

}  // namespace
}  // namespace millrace
