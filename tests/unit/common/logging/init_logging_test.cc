// SPDX-License-Identifier: Apache-2.0
#include "common/logging/init_logging.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(ParseLogLevel, KnowsTheWordsThatItNames) {
  EXPECT_EQ(parse_log_level("debug"), spdlog::level::debug);
  EXPECT_EQ(parse_log_level("warn"), spdlog::level::warn);
  EXPECT_EQ(parse_log_level("error"), spdlog::level::err);
  EXPECT_EQ(parse_log_level("off"), spdlog::level::off);
}

TEST(ParseLogLevel, AnyOtherWordIsNone) {
  EXPECT_EQ(parse_log_level("verbose"), std::nullopt);
  EXPECT_EQ(parse_log_level("INFO"), std::nullopt);
}

}  // namespace
}  // namespace millrace
