// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/stranger_table.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

TEST(StrangerTable, BeyondTheLimitTheOneThatCameFirstGives) {
  StrangerTable table({.all = 3, .of_address = 2});
  const auto first = table.admit("a");
  const auto second = table.admit("b");
  const auto third = table.admit("c");
  EXPECT_FALSE(first.gives_way || second.gives_way || third.gives_way);
  EXPECT_EQ(table.admit("d").gives_way, first.id);
  EXPECT_EQ(table.admit("e").gives_way, second.id);
  EXPECT_EQ(table.size(), 3);
}

TEST(StrangerTable, OneAddressOnlyTakesPlacesFromItself) {
  StrangerTable table({.all = 3, .of_address = 2});
  const auto bystander = table.admit("b");
  const auto first = table.admit("a");
  const auto second = table.admit("a");
  EXPECT_EQ(table.admit("a").gives_way, first.id);
  EXPECT_EQ(table.admit("a").gives_way, second.id);
  table.leave(bystander.id);
  EXPECT_EQ(table.size(), 2);
}

TEST(StrangerTable, WhoIsKnownTakesNoPlace) {
  StrangerTable table({.all = 2, .of_address = 2});
  const auto known = table.admit("a");
  table.leave(known.id);
  table.leave(known.id);
  EXPECT_FALSE(table.admit("a").gives_way);
  EXPECT_FALSE(table.admit("a").gives_way);
  EXPECT_TRUE(table.admit("a").gives_way);
}

}  // namespace
}  // namespace millrace::coordinator
