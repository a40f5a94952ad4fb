// SPDX-License-Identifier: Apache-2.0
#include "model/vocabulary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace millrace::model {
namespace {

TEST(Vocabulary, BestTokensComeFirstAndEqualOnesBySmallerId) {
  const std::vector<float> row = {1, 3, -2, 3, 2};
  const auto best = top_tokens(row, 3);
  ASSERT_EQ(best.size(), 3u);
  EXPECT_EQ(best[0].token_id, 1);
  EXPECT_EQ(best[1].token_id, 3);
  EXPECT_EQ(best[2].token_id, 4);
  const double sum = std::exp(1) + std::exp(3) + std::exp(-2) + std::exp(3) + std::exp(2);
  // A unit in the last place of a float32 from 1 to 2.
  EXPECT_NEAR(best[2].logprob, 2 - std::log(sum), 1.2e-7);
  EXPECT_EQ(best[2].logit, 2);
}

TEST(Vocabulary, ATokenAloneIsAsInTheList) {
  const std::vector<float> row = {1, 3, -2, 3, 2};
  EXPECT_EQ(best_token(row), 1);
  for (const auto& token : top_tokens(row, 5)) {
    EXPECT_FLOAT_EQ(static_cast<float>(token_logprob(row, token.token_id)), token.logprob);
  }
}

TEST(Vocabulary, AskedForMoreThanThereIsGivesAll) {
  EXPECT_EQ(top_tokens(std::vector<float>{1, 2}, 5).size(), 2u);
}

TEST(Vocabulary, LogitsThatAreNotFiniteAreNamed) {
  std::vector<float> row(100, 1.5F);
  EXPECT_TRUE(check_logits(row, 9).ok());
  row[0] = std::numeric_limits<float>::lowest();
  row[1] = std::numeric_limits<float>::max();
  EXPECT_TRUE(check_logits(row, 9).ok());
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), infinity, -infinity}) {
    row[99] = bad;
    const auto checked = check_logits(row, 8191);
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, Errc::kInternal);
    EXPECT_EQ(checked.error().message,
              fmt::format("the logit of token 99 after position 8191 is not finite: {}", bad));
  }
}

}  // namespace
}  // namespace millrace::model
