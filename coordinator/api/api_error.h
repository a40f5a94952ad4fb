// An error as an HTTP client sees it: what went wrong, which parameter is to blame, and whether
// and when to try again.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "coordinator/schedule/refusal.h"

namespace millrace::coordinator {

struct ApiError {
  ApiError(Error cause, std::string blamed_param = {})  // NOLINT: implicit by design
      : error(std::move(cause)), param(std::move(blamed_param)) {}
  ApiError(Refusal refusal)  // NOLINT: implicit by design
      : error(std::move(refusal.error)),
        param(std::move(refusal.field)),
        retry_after(refusal.retry_after_s) {}

  int http_status() const;
  // Seconds for a Retry-After header; 0 when trying again is no use.
  int retry_after_s() const;
  // {"error":{"message","type","code","param","retriable"},"request_id"}: type is the name of the
  // Errc, code the HTTP status. Without `request_id` where it is "".
  std::string to_json(std::string_view request_id = {}) const;

  Error error;
  std::string param;    // "" when no single field is to blame
  int retry_after = 0;  // seconds, where more is known than the code says
  int status = 0;       // where HTTP has one of its own (405, 431); 0: what the code says
};

}  // namespace millrace::coordinator
