// SPDX-License-Identifier: Apache-2.0
#include "common/errc_wire.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(ErrcWire, EveryCodeSurvivesTheWire) {
  for (int code = errc_to_wire(Errc::kInvalidArgument); code <= errc_to_wire(Errc::kDenied);
       ++code) {
    EXPECT_EQ(errc_to_wire(errc_from_wire(code)), code);
  }
}

TEST(ErrcWire, CodesOfANewerPeerBecomeInternal) {
  for (const int code : {0, -1, 14, 1 << 30}) EXPECT_EQ(errc_from_wire(code), Errc::kInternal);
}

}  // namespace
}  // namespace millrace
