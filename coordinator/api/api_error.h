// SPDX-License-Identifier: Apache-2.0
// An error as an HTTP client sees it: its status, its body, and when to try again.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

struct ApiError {
  ApiError(Refusal why) : refusal(std::move(why)) {}  // NOLINT: implicit by design
  ApiError(Error why) : refusal(std::move(why)) {}    // NOLINT: implicit by design
  ApiError(Error why, int own_status) : refusal(std::move(why)), status(own_status) {}

  int http_status() const;
  // Seconds for a Retry-After header; 0 when trying again is useless.
  int retry_after_s() const;
  // {"error":{"message","type","code","param","retriable"},"request_id"}: `type` is the name of the
  // Errc, `code` the HTTP status. An empty `request_id` is left out.
  std::string to_json(std::string_view request_id = {}) const;

  Refusal refusal;
  int status = 0;  // where HTTP has a status of its own (405, 415, 431); 0: the one of the code
};

}  // namespace millrace::coordinator
