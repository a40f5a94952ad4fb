// The body of lease:renew and lease:release. Pure.
#pragma once

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

std::variant<LeaseBody, Refusal> parse_lease_renewal(std::string_view body, int64_t max_lease_ms);
std::variant<LeaseBody, Refusal> parse_lease_release(std::string_view body);

}  // namespace millrace::coordinator
