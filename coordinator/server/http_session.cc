// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/http_session.h"

#include <array>
#include <boost/asio/ssl/error.hpp>

#include "common/log.h"
#include "common/quote.h"
#include "coordinator/exchange/completion_form.h"
#include "coordinator/exchange/events_exchange.h"
#include "coordinator/exchange/lease_exchange.h"
#include "coordinator/exchange/prefill_exchange.h"
#include "coordinator/exchange/prefill_form.h"
#include "coordinator/exchange/service_reply.h"
#include "coordinator/exchange/status_exchange.h"
#include "coordinator/net/client_address.h"

namespace millrace::coordinator {

HttpSession::HttpSession(tcp::socket socket, const TlsContext& tls, HttpShared& shared,
                         ConnectionTable::Admission admission)
    : shared_(shared),
      stream_(std::move(socket), tls),
      gate_(shared.options.http, shared.tokens, std::move(admission), shared.bodies,
            client_of(stream_.socket())),
      writer_(stream_, shared, client_of(stream_.socket()), gate_.only_health_probes()) {
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
}

void HttpSession::close() {
  error_code ignored;
  stream_.socket().close(ignored);
}

awaitable<void> HttpSession::run() {
  const auto self = shared_from_this();
  TimePoint due = header_due();
  bool again = co_await accept_tls(due);
  while (again && stream_.socket().is_open()) {
    again = co_await serve_one(due);
    due = header_due();
  }
  co_await stream_.finish();
  close();
}

TimePoint HttpSession::header_due() const {
  const HttpLimits& limits = shared_.options.http;
  return Clock::steady().now() +
         (gate_.only_health_probes() ? limits.health_probe_idle : limits.idle);
}

awaitable<bool> HttpSession::accept_tls(TimePoint due) {
  stream_.expires_at(due);
  const error_code ec = co_await stream_.accept_tls();
  if (!ec) co_return true;
  // A client that only connects, or is too slow, is not worth a log line, as without TLS.
  if (ec.category() == asio::error::get_ssl_category()) {
    if (const auto times = shared_.tls_line.due()) {
      log::info("TLS with {}: {}{}", endpoint_name(stream_.socket()), stream_.reason(ec),
                PacedLine::others(*times));
    }
  }
  close();
  co_return false;
}

awaitable<bool> HttpSession::serve_one(TimePoint due) {
  using Step = RequestIntake::Step;
  RequestIntake intake(stream_, buffer_, gate_, shared_.options.http);
  Step step = co_await intake.read_header(due);
  if (step == Step::kRead) {
    answering_ = true;
    step = co_await intake.read_body();
  }
  bool again = false;
  if (step == Step::kRefused) {
    co_await turn_away(intake);
  } else if (step == Step::kRead) {
    // All waits from here on have deadlines of their own.
    stream_.expires_never();
    RequestReader::Request request = intake.release();
    writer_.begin({.id = intake.request_id(),
                   .version = request.version(),
                   .is_head = request.method() == http::verb::head,
                   .keep_alive = request.keep_alive()});
    again = co_await answer(request, intake.route());
  }
  gate_.release();
  answering_ = false;
  co_return again;
}

std::optional<ApiError> HttpSession::another_instance(const RequestReader::Request& request,
                                                      const Route& route) const {
  const auto wanted = request.find(kInstanceHeader);
  const bool is_about_one = !route.id.empty() && route.path.starts_with("/v1/prefill/");
  if (!is_about_one || wanted == request.end()) return std::nullopt;
  if (wanted->value() == shared_.instance) return std::nullopt;
  const std::string named(wanted->value());
  return ApiError(error(Errc::kNotFound,
                        "the coordinator's instance {} does not answer here; this one is '{}'",
                        quote(std::string_view(named)), shared_.instance));
}

awaitable<bool> HttpSession::answer(RequestReader::Request& request, const Route& route) {
  if (shared_.options.faults.answering) shared_.options.faults.answering(route.path);
  if (const auto other = another_instance(request, route)) {
    co_return co_await writer_.send_error(*other);
  }
  HttpReply reply;
  switch (route.endpoint) {
    case Endpoint::kPrefill:
    case Endpoint::kForecast: {
      PrefillForm form(shared_);
      co_return co_await run_prompt(request, route, form);
    }
    case Endpoint::kCompletion:
    case Endpoint::kChat:
    case Endpoint::kGenerate: {
      CompletionForm form(shared_);
      co_return co_await run_prompt(request, route, form);
    }
    case Endpoint::kEvents: {
      EventsExchange events(shared_, stream_, writer_);
      co_return co_await events.run(route, gate_.caller(), request.method() == http::verb::head);
    }
    case Endpoint::kLeaseRenew:
    case Endpoint::kLeaseRelease: {
      LeaseExchange lease(shared_);
      reply = co_await lease.run(route, gate_.caller(), request.body(), writer_.request_id());
      break;
    }
    case Endpoint::kStatus:
    case Endpoint::kCancel: {
      StatusExchange status(shared_);
      reply = co_await status.run(route, gate_.caller(), writer_.request_id());
      break;
    }
    default:
      reply = service_reply(
          route, shared_.scheduler, shared_.metrics, shared_.tokenizers,
          gate_.caller().may(Scope::kAdmin) ? ShownNames() : ShownNames::hidden(shared_.names_key),
          writer_.request_id());
  }
  co_return co_await writer_.send(std::move(reply));
}

RequestTracer::Answering HttpSession::trace(const RequestReader::Request& request,
                                            const Route& route) {
  if (route.endpoint == Endpoint::kForecast) return shared_.tracer.leave_out();
  const bool is_one = request.count("traceparent") == 1;
  return shared_.tracer.begin(
      {.method = route.method,
       .path = route.path,
       .operation = route.endpoint == Endpoint::kChat ? "chat" : "text_completion",
       .traceparent = is_one ? std::string(request["traceparent"]) : ""});
}

awaitable<bool> HttpSession::run_prompt(RequestReader::Request& request, const Route& route,
                                        PromptForm& form) {
  RequestTracer::Answering answering = trace(request, route);
  PrefillExchange prefill(shared_, stream_, gate_, writer_, form, answering);
  const bool again = co_await prefill.run(request, route);
  answering.set_status(writer_.status());
  co_return again;
}

awaitable<void> HttpSession::turn_away(const RequestIntake& intake) {
  if (const auto times = shared_.refused_line.due()) {
    const Error& why = intake.refusal().refusal.error;
    log::info("request {}: refused, {}: {}{}", intake.name(), errc_name(why.code), why.message,
              PacedLine::others(*times));
  }
  writer_.begin({.id = intake.request_id(), .is_head = intake.route().method == "HEAD"});
  co_await writer_.send_error(intake.refusal());
  co_await linger();
}

awaitable<void> HttpSession::linger() {
  error_code ec;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ec);
  stream_.expires_after(std::chrono::seconds(2));
  std::array<char, 16384> rest;
  while (!ec) {
    ec = (co_await stream_.read_some(asio::buffer(rest))).error;
  }
}

}  // namespace millrace::coordinator
