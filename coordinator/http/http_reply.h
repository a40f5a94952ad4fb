// SPDX-License-Identifier: Apache-2.0
// An answer to an HTTP request, known as a whole, and its form on the wire. Pure.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>
#include <string_view>

#include "coordinator/api/api_error.h"

namespace millrace::coordinator {

// The status of an error for a caller who has not identified itself.
inline constexpr int kUnauthorized = 401;
// For a body that is compressed.
inline constexpr int kUnsupportedMedia = 415;

// Has the id of the coordinator's process in every answer. In a call about a prefill: only that
// process is to answer it.
inline constexpr const char* kInstanceHeader = "X-Millrace-Instance";

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  int retry_after_s = 0;  // 0: no such header
  std::string allow;      // "" : no such header
  std::string challenge;  // WWW-Authenticate; "" : no such header
  std::string policy;     // Content-Security-Policy; "" : no such header
  // For people who look: neither to be stored nor to be shown or read by other sites.
  bool for_viewers = false;
};

// `request_id` may be "".
HttpReply error_reply(const ApiError& why, std::string_view request_id);

// What an answer needs to know about its request.
struct AnsweredRequest {
  std::string id;         // for X-Request-Id; "" : no such header
  std::string client_id;  // for X-Client-Request-Id; "" : no such header
  unsigned version = 11;
  bool is_head = false;     // the answer has a length and no body
  bool keep_alive = false;  // the client can use the connection again
};

// The headers of its ids.
void set_ids(const AnsweredRequest& request, boost::beast::http::fields& header);

boost::beast::http::response<boost::beast::http::string_body> to_response(
    HttpReply reply, const AnsweredRequest& request, bool keep_alive);

}  // namespace millrace::coordinator
