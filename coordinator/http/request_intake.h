// SPDX-License-Identifier: Apache-2.0
// Reads one request from a connection, within limits and deadlines: first its header and then, if
// the gate lets it in, its body.
#pragma once

#include <optional>
#include <string>

#include "common/net/net_stream.h"
#include "coordinator/api/api_error.h"
#include "coordinator/http/request_gate.h"
#include "coordinator/http/request_reader.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

class RequestIntake {
 public:
  enum class Step {
    kRead,
    kRefused,  // refusal() says why; the rest of the request was not read
    kGone,     // the connection has ended, or nothing came in time
  };

  // All must outlive it. `buffer` keeps what the connection has read beyond this request.
  RequestIntake(NetStream& stream, ReadBuffer& buffer, RequestGate& gate, const HttpLimits& limits);

  // `due`: when the whole header must have arrived.
  awaitable<Step> read_header(TimePoint due);
  awaitable<Step> read_body();

  const ApiError& refusal() const { return *refusal_; }
  // Valid once the header has been read.
  const Route& route() const { return route_; }
  // The X-Request-Id of the client; "" if it has none that can be used.
  const std::string& request_id() const { return request_id_; }
  // Valid once the body has been read.
  RequestReader::Request release() { return reader_.release(); }
  // The name of the request in the log, whether or not it has an id.
  std::string name() const;

 private:
  // The next piece, from the buffer or the socket.
  awaitable<Step> read_more();
  awaitable<void> send_continue();
  Step refuse(ApiError why);

  NetStream& stream_;
  ReadBuffer& buffer_;
  RequestGate& gate_;
  const HttpLimits& limits_;
  RequestReader reader_;
  Route route_;
  std::string request_id_;
  std::optional<ApiError> refusal_;
};

}  // namespace millrace::coordinator
