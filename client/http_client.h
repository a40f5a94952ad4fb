// One HTTP exchange with a coordinator, plain or streamed, under deadlines. Blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/clock.h"
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

class HttpClient {
 public:
  HttpClient(std::string host, std::string port) : host_(std::move(host)), port_(std::move(port)) {}

  // Events of a streamed answer go to `on_event` as they arrive. `silence` is how long nothing at
  // all may come: the coordinator sends a comment every 10 s.
  Result<HttpAnswer> call(
      const HttpCall& call, Duration silence,
      const std::function<void(const protocol::SseEvent&)>& on_event = {}) const;

 private:
  std::string host_;
  std::string port_;
};

}  // namespace millrace::client
