// SPDX-License-Identifier: Apache-2.0
// Why a request was refused or failed: what went wrong, which of its fields is to blame, and when
// to try again. coordinator/api/api_error.h turns it into HTTP.
#pragma once

#include <string>
#include <utility>

#include "common/result.h"

namespace millrace::coordinator {

struct Refusal {
  Refusal(Error cause, std::string blamed_field = {})  // NOLINT: implicit by design
      : error(std::move(cause)), field(std::move(blamed_field)) {}

  Error error;
  std::string field;        // "" when no single one is to blame
  int retry_after_s = 0;    // where more is known than the code says, else 0
  bool over_quota = false;  // kExhausted is the client's quota, not the coordinator's room
};

}  // namespace millrace::coordinator
