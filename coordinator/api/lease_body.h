// SPDX-License-Identifier: Apache-2.0
// The body of lease:renew and lease:release. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

struct LeaseBody {
  std::string lease_id;
  int64_t lease_ms = 0;  // of a renewal, from 1 on
};

inline constexpr std::array<std::string_view, 2> kLeaseRenewalFields = {"lease_id", "lease_ms"};
inline constexpr std::array<std::string_view, 1> kLeaseReleaseFields = {"lease_id"};

std::variant<LeaseBody, Refusal> parse_lease_renewal(std::string_view body, int64_t max_lease_ms);
std::variant<LeaseBody, Refusal> parse_lease_release(std::string_view body);

}  // namespace millrace::coordinator
