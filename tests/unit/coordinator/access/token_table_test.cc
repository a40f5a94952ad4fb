// SPDX-License-Identifier: Apache-2.0
#include "coordinator/access/token_table.h"

#include <gtest/gtest.h>

#include "tests/support/temp_directory.h"

namespace millrace::coordinator {
namespace {

// printf alpha | sha256sum
constexpr const char* kAlpha = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";
// printf beta | sha256sum
constexpr const char* kBeta = "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753";

class TokenTableTest : public ::testing::Test {
 protected:
  Result<void> load(const std::string& text) {
    return table_.load(directory_.write("tokens", text));
  }

  test::TempDirectory directory_;
  const std::string path_ = directory_.file("tokens");
  TokenTable table_;
};

TEST_F(TokenTableTest, WithoutAFileEverybodyMayDoEverything) {
  EXPECT_FALSE(table_.asks());
  EXPECT_TRUE(table_.identify("")->may(Scope::kAdmin));
}

TEST_F(TokenTableTest, KnowsTheNameOfATokenByItsDigest) {
  ASSERT_TRUE(load(fmt::format("a {} read\nb {} prefill\n", kAlpha, kBeta)).ok());
  EXPECT_TRUE(table_.asks());
  EXPECT_EQ(table_.identify("alpha")->name, "a");
  EXPECT_EQ(table_.identify("beta")->name, "b");
  EXPECT_EQ(table_.identify("gamma").error().code, Errc::kDenied);
  EXPECT_EQ(table_.identify(kAlpha).error().code, Errc::kDenied);
  EXPECT_EQ(table_.identify("").error().code, Errc::kDenied);
}

TEST_F(TokenTableTest, AFileWithoutTokensLetsNobodyIn) {
  ASSERT_TRUE(load("").ok());
  EXPECT_TRUE(table_.asks());
  EXPECT_FALSE(table_.identify("alpha").ok());
}

TEST_F(TokenTableTest, ABadFileChangesNothing) {
  ASSERT_TRUE(load(fmt::format("a {} read\n", kAlpha)).ok());
  EXPECT_EQ(load(fmt::format("b {} read\nc\n", kBeta)).error().message,
            path_ + ": line 2: a line has a name, a SHA-256 and scopes; here are 1 words");
  EXPECT_FALSE(table_.load("/nonexistent").ok());
  EXPECT_TRUE(table_.identify("alpha").ok());
  EXPECT_FALSE(table_.identify("beta").ok());
}

}  // namespace
}  // namespace millrace::coordinator
