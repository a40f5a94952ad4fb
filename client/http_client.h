// SPDX-License-Identifier: Apache-2.0
// One HTTP exchange with a coordinator, plain or streamed, under deadlines. Blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "client/server_address.h"
#include "common/clock.h"
#include "common/net/tls_context.h"
#include "common/result.h"
#include "protocol/sse_parser.h"

namespace millrace::client {

struct HttpCall {
  std::string method = "GET";
  std::string target;
  std::string content_type = "application/json";
  std::string body;
};

struct HttpAnswer {
  int status = 0;
  std::string body;  // of an answer that is not a stream of events
};

// What a client needs to be let in.
struct HttpAccess {
  std::string token;             // "" : none is shown
  TlsContext tls;                // for servers that encrypt
  std::string traceparent = {};  // of the trace that calls are a part of; "" : none
};

class HttpClient {
 public:
  HttpClient(ServerAddress server, HttpAccess access = {})
      : server_(std::move(server)), access_(std::move(access)) {}

  // Events of a streamed answer go to `on_event` as they arrive. `silence`: how long nothing at all
  // may arrive; the coordinator sends a comment every 10 s.
  Result<HttpAnswer> call(
      const HttpCall& call, Duration silence,
      const std::function<void(const protocol::SseEvent&)>& on_event = {}) const;

 private:
  ServerAddress server_;
  HttpAccess access_;
};

}  // namespace millrace::client
