// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/lease_body.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

constexpr int64_t kMaxLeaseMs = 1000;

std::string blamed(const std::variant<LeaseBody, Refusal>& parsed) {
  const auto* wrong = std::get_if<Refusal>(&parsed);
  return wrong == nullptr ? "" : wrong->field;
}

TEST(LeaseBody, ARenewalHasALeaseAndItsLength) {
  const auto parsed = parse_lease_renewal(R"({"lease_id":"l","lease_ms":1000})", kMaxLeaseMs);
  ASSERT_EQ(blamed(parsed), "");
  EXPECT_EQ(std::get<LeaseBody>(parsed).lease_id, "l");
  EXPECT_EQ(std::get<LeaseBody>(parsed).lease_ms, 1000);
}

TEST(LeaseBody, AReleaseHasALease) {
  const auto parsed = parse_lease_release(R"({"lease_id":"l"})");
  ASSERT_EQ(blamed(parsed), "");
  EXPECT_EQ(std::get<LeaseBody>(parsed).lease_id, "l");
}

TEST(LeaseBody, WhatIsNoLeaseIsRefused) {
  for (const char* body :
       {"", "[1", "[1]", "7", "{}", R"({"lease_id":7})", R"({"lease_id":null})"}) {
    EXPECT_EQ(blamed(parse_lease_release(body)), "lease_id") << body;
    EXPECT_EQ(blamed(parse_lease_renewal(body, kMaxLeaseMs)), "lease_id") << body;
  }
}

TEST(LeaseBody, AnUnknownFieldIsRefused) {
  EXPECT_EQ(blamed(parse_lease_release(R"({"lease_id":"l","lease_ms":5})")), "lease_ms");
  const auto parsed =
      parse_lease_renewal(R"({"lease_id":"l","lease_ms":5,"lease":6})", kMaxLeaseMs);
  EXPECT_EQ(blamed(parsed), "lease");
}

TEST(LeaseBody, ALengthOutOfRangeIsRefused) {
  for (const char* length : {"0", "-1", "1001", "1e3", "\"5\"", "99999999999999999999"}) {
    const auto body = fmt::format(R"({{"lease_id":"l","lease_ms":{}}})", length);
    EXPECT_EQ(blamed(parse_lease_renewal(body, kMaxLeaseMs)), "lease_ms") << body;
  }
  EXPECT_EQ(blamed(parse_lease_renewal(R"({"lease_id":"l"})", kMaxLeaseMs)), "lease_ms");
  const auto parsed = parse_lease_renewal(R"({"lease_id":"l","lease_ms":1001})", kMaxLeaseMs);
  EXPECT_EQ(std::get<Refusal>(parsed).error.message, "'lease_ms' is 1001; must be 1 to 1000");
}

}  // namespace
}  // namespace millrace::coordinator
