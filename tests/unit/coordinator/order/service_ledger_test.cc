// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/service_ledger.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

TEST(ServiceLedger, OwnersHaveTheirTurnsByWhatTheyTook) {
  ServiceLedger ledger;
  ledger.take("a", 8);
  EXPECT_LT(ledger.turn_of("b"), ledger.turn_of("a"));
  // Eight prompts of a second each count as much as one of eight seconds.
  for (int i = 0; i < 8; ++i) {
    EXPECT_LT(ledger.turn_of("b"), ledger.turn_of("a")) << i;
    ledger.take("b", 1);
  }
  EXPECT_EQ(ledger.turn_of("b"), ledger.turn_of("a"));
}

TEST(ServiceLedger, TimeInWhichNothingWasAskedIsNotSavedUp) {
  ServiceLedger ledger;
  ledger.take("late", 1);
  for (int i = 0; i < 100; ++i) ledger.take("busy", 1);
  // The newcomer is at most one turn ahead, not a hundred.
  EXPECT_GE(ledger.turn_of("late"), ledger.turn_of("busy") - 1);
  EXPECT_EQ(ledger.turn_of("late"), ledger.turn_of("never seen"));
}

TEST(ServiceLedger, WhatWasForetoldWrongIsPutRight) {
  ServiceLedger ledger;
  ledger.take("a", 10);
  ledger.correct("a", -9);
  EXPECT_EQ(ledger.turn_of("a"), 1);
  ledger.correct("a", -5);
  EXPECT_EQ(ledger.turn_of("a"), ledger.turn_of("b"));
  ledger.correct("a", 2);
  EXPECT_EQ(ledger.turn_of("a"), 2);
}

}  // namespace
}  // namespace millrace::coordinator
