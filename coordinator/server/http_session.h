// SPDX-License-Identifier: Apache-2.0
// One HTTP connection: takes requests one after another and hands each to the exchange that answers
// it.
#pragma once

#include <memory>
#include <optional>

#include "common/net/net_stream.h"
#include "coordinator/exchange/prompt_form.h"
#include "coordinator/http/connection_table.h"
#include "coordinator/http/http_shared.h"
#include "coordinator/http/reply_writer.h"
#include "coordinator/http/request_gate.h"
#include "coordinator/http/request_intake.h"
#include "coordinator/tracing/request_tracer.h"

namespace millrace::coordinator {

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // Encrypted unless `tls` is null.
  HttpSession(tcp::socket socket, const TlsContext& tls, HttpShared& shared,
              ConnectionTable::Admission admission);

  awaitable<void> run();
  void close();
  // True from the receipt of a request until its answer has been sent.
  bool answering() const { return answering_; }

 private:
  // When the header is due; for the first header the time includes the TLS handshake.
  TimePoint header_due() const;
  // False if the connection has ended.
  awaitable<bool> accept_tls(TimePoint due);
  // True when the connection can take another request.
  awaitable<bool> serve_one(TimePoint due);
  awaitable<bool> answer(RequestReader::Request& request, const Route& route);
  // Of a call about a prefill that only another process is to answer.
  std::optional<ApiError> another_instance(const RequestReader::Request& request,
                                           const Route& route) const;
  RequestTracer::Answering trace(const RequestReader::Request& request, const Route& route);
  awaitable<bool> run_prompt(RequestReader::Request& request, const Route& route, PromptForm& form);
  // Sends an error for a request that was not read to its end, so the connection ends with the
  // answer.
  awaitable<void> turn_away(const RequestIntake& intake);
  // Lets the client read the answer to a request whose body was not read.
  awaitable<void> linger();

  HttpShared& shared_;
  NetStream stream_;
  ReadBuffer buffer_;
  RequestGate gate_;
  ReplyWriter writer_;
  bool answering_ = false;
};

}  // namespace millrace::coordinator
