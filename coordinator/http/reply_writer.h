// SPDX-License-Identifier: Apache-2.0
// Writes the answers of one connection: whole ones, and streams of events. Large answers count
// against a budget, as bodies do, so that a client that does not read cannot fill the memory.
#pragma once

#include <string>
#include <utility>

#include "common/net/net_stream.h"
#include "coordinator/http/body_budget.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/http/http_shared.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

class ReplyWriter {
 public:
  // With `closes`, the connection ends after the first answer.
  ReplyWriter(NetStream& stream, HttpShared& shared, std::string client, bool closes);

  // The request that the next answer is for.
  void begin(AnsweredRequest request) {
    request_ = std::move(request);
    status_ = 0;
  }
  // Of its answer; 0 until it has one.
  int status() const { return status_; }
  const std::string& request_id() const { return request_.id; }
  void set_request_id(const std::string& id) { request_.id = id; }
  // For a request that could not have the id that its client wants: answers have both.
  void replace_request_id(const std::string& id) {
    request_.client_id = std::exchange(request_.id, id);
  }

  // Whether the client knows answers of unknown length: HTTP/1.0 has none.
  bool takes_chunks() const { return request_.version >= 11; }

  // True when the connection can take another request.
  awaitable<bool> send(HttpReply reply);
  awaitable<bool> send_error(const ApiError& why);

  // An event stream: true as long as the client can be written to; end_events() returns the same as
  // send().
  awaitable<bool> begin_events();
  awaitable<bool> send_events(std::string text);
  awaitable<bool> end_events();

  // Whether the client is still there. A client that has stopped sending may still listen or may
  // have left; only sending something tells, by how its system answers. HTTP/1.1 has an interim
  // answer that changes nothing. HTTP/1.0 clients do not know it and are assumed to be there.
  awaitable<bool> client_listens();

 private:
  std::optional<ApiError> hold(uint64_t bytes);
  // Whether the connection may take another request; the client is told with the head of an answer.
  bool keeps_alive() const;

  NetStream& stream_;
  HttpShared& shared_;
  const bool closes_;
  BodyBudget::Share share_;
  AnsweredRequest request_;
  int status_ = 0;
};

}  // namespace millrace::coordinator
