// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_reply.h"

namespace millrace::coordinator {

namespace http = boost::beast::http;

HttpReply error_reply(const ApiError& why, std::string_view request_id) {
  HttpReply reply{.status = why.http_status(),
                  .body = why.to_json(request_id),
                  .retry_after_s = why.retry_after_s()};
  if (reply.status == kUnauthorized) reply.challenge = R"(Bearer realm="millrace")";
  return reply;
}

void set_ids(const AnsweredRequest& request, http::fields& header) {
  if (!request.id.empty()) header.set("X-Request-Id", request.id);
  if (!request.client_id.empty()) header.set("X-Client-Request-Id", request.client_id);
}

http::response<http::string_body> to_response(HttpReply reply, const AnsweredRequest& request,
                                              bool keep_alive) {
  http::response<http::string_body> response(static_cast<http::status>(reply.status),
                                             request.version);
  if (reply.status == 499) response.reason("Client Closed Request");
  response.set(http::field::server, "millrace");
  response.set(http::field::content_type, reply.content_type);
  set_ids(request, response);
  if (reply.retry_after_s > 0) {
    response.set(http::field::retry_after, std::to_string(reply.retry_after_s));
  }
  if (!reply.challenge.empty()) {
    response.set(http::field::www_authenticate, reply.challenge);
  }
  if (!reply.allow.empty()) response.set(http::field::allow, reply.allow);
  if (!reply.policy.empty()) response.set("Content-Security-Policy", reply.policy);
  if (reply.for_viewers) {
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("Referrer-Policy", "no-referrer");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
  }
  if (reply.status == kUnsupportedMedia) response.set(http::field::accept_encoding, "identity");
  response.keep_alive(keep_alive);
  response.body() = std::move(reply.body);
  response.prepare_payload();
  if (request.is_head) response.body().clear();  // its length stays
  return response;
}

}  // namespace millrace::coordinator
