// An answer to an HTTP request that is known as a whole.
#pragma once

#include <string>

#include "coordinator/api/api_error.h"

namespace millrace::coordinator {

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  int retry_after_s = 0;  // 0: no such header
  std::string allow;      // "" : no such header
};

// `request_id` may be "".
inline HttpReply error_reply(const ApiError& why, std::string_view request_id) {
  return {why.http_status(), why.to_json(request_id), "application/json", why.retry_after_s(), ""};
}

}  // namespace millrace::coordinator
