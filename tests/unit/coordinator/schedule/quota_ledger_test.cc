// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/quota_ledger.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;

class QuotaLedgerTest : public ::testing::Test {
 protected:
  bool lets_in(const Caller& caller, int open_requests = 0) const {
    return !ledger_.check(caller, open_requests, now_);
  }

  const Caller caller_{.name = "a", .scope = Scope::kPrefill, .quota = {.tokens_per_minute = 600}};
  QuotaLedger ledger_;
  TimePoint now_{};
};

TEST_F(QuotaLedgerTest, NoQuotaIsNoLimit) {
  const Caller caller{.name = "a", .scope = Scope::kPrefill, .quota = {}};
  ledger_.charge(caller, 1'000'000'000, now_);
  EXPECT_TRUE(lets_in(caller, 1'000'000));
}

TEST_F(QuotaLedgerTest, BoundsTheRequestsAtOnce) {
  const Caller caller{.name = "a", .scope = Scope::kPrefill, .quota = {.requests_at_once = 2}};
  EXPECT_TRUE(lets_in(caller, 1));
  const auto refusal = ledger_.check(caller, 2, now_);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->error.code, Errc::kExhausted);
  EXPECT_EQ(refusal->error.message, "2 requests of 'a' wait or run, its quota");
}

TEST_F(QuotaLedgerTest, AMinutesTokensMayBeUsedAtOnceAndComeBackEvenly) {
  ledger_.charge(caller_, 599, now_);
  EXPECT_TRUE(lets_in(caller_));
  ledger_.charge(caller_, 1, now_);
  const auto refusal = ledger_.check(caller_, 0, now_);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->error.message, "'a' has used up its quota of 600 prompt tokens a minute");
  EXPECT_EQ(refusal->retry_after_s, 1);
  now_ += seconds(1);
  EXPECT_TRUE(lets_in(caller_));
  ledger_.charge(caller_, 10, now_);
  EXPECT_FALSE(lets_in(caller_));
}

TEST_F(QuotaLedgerTest, ALongPromptIsPaidForByTheMinutesAfterIt) {
  ledger_.charge(caller_, 600 + 1200, now_);
  EXPECT_EQ(ledger_.check(caller_, 0, now_)->retry_after_s, 121);
  now_ += seconds(120);
  EXPECT_FALSE(lets_in(caller_));
  now_ += seconds(1);
  EXPECT_TRUE(lets_in(caller_));
}

TEST_F(QuotaLedgerTest, WhatIsNotUsedInAMinuteIsGone) {
  now_ += std::chrono::hours(1);
  ledger_.charge(caller_, 600, now_);
  EXPECT_FALSE(lets_in(caller_));
}

TEST_F(QuotaLedgerTest, NamesHaveQuotasOfTheirOwn) {
  ledger_.charge(caller_, 600, now_);
  EXPECT_TRUE(lets_in({.name = "b", .scope = Scope::kPrefill, .quota = caller_.quota}));
}

TEST_F(QuotaLedgerTest, AHugeDebtStillHasARetryAfterThatFits) {
  ledger_.charge(caller_, 1ll << 60, now_);
  EXPECT_EQ(ledger_.check(caller_, 0, now_)->retry_after_s, 3600);
}

}  // namespace
}  // namespace millrace::coordinator
