#include "coordinator/http_session.h"

#include <array>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json.hpp>

#include "common/log.h"
#include "common/quoted.h"
#include "coordinator/endpoint_name.h"
#include "coordinator/request_json.h"
#include "coordinator/request_log.h"

namespace millrace::coordinator {

namespace {

constexpr std::string_view kServer = "millrace";

// What was wrong with a request that could not be read.
ApiError unreadable(error_code why, uint64_t max_header_bytes, uint64_t max_body_bytes) {
  if (why == http::error::body_limit) {
    return ApiError(
        error(Errc::kTooLarge, "body of more than {} bytes, the limit", max_body_bytes));
  }
  if (why == http::error::header_limit) {
    ApiError refusal(
        error(Errc::kTooLarge, "header of more than {} bytes, the limit", max_header_bytes));
    refusal.status = 431;
    return refusal;
  }
  return ApiError(error(Errc::kInvalidArgument, "cannot read the request: {}", why.message()));
}

using RequestHeader = http::header</*isRequest=*/true>;

Route route_of(const RequestHeader& header) {
  return find_route({header.method_string().data(), header.method_string().size()},
                    {header.target().data(), header.target().size()});
}

bool is_probe(Endpoint endpoint) {
  return endpoint == Endpoint::kHealth || endpoint == Endpoint::kReady ||
         endpoint == Endpoint::kMetrics;
}

}  // namespace

HttpSession::HttpSession(tcp::socket socket, HttpShared& shared, Kind kind)
    : shared_(shared), kind_(kind), stream_(std::move(socket)), body_share_(shared.bodies) {
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
}

void HttpSession::close() {
  error_code ignored;
  stream_.socket().close(ignored);
}

awaitable<void> HttpSession::run() {
  const auto self = shared_from_this();
  bool again = true;
  while (again && stream_.socket().is_open()) again = co_await serve_one();
  close();
}

awaitable<bool> HttpSession::serve_one() {
  const HttpLimits& limits = shared_.options.http;
  Parser parser;
  parser.header_limit(limits.max_header_bytes);
  parser.body_limit(boost::none);  // until the route is known
  request_id_.clear();
  stream_.expires_after(kind_ == Kind::kAny ? limits.idle : limits.probe_idle);
  const auto [header_ec, header_bytes] =
      co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  if (header_ec) co_return co_await refuse(header_ec);
  answering_ = true;
  const Route route = route_of(parser.get());
  bool again = false;
  if (auto wrong = check_header(parser, route)) {
    again = co_await turn_away(*std::move(wrong));
  } else if (co_await read_body(parser)) {
    // What waits from here on has deadlines of its own.
    stream_.expires_never();
    Request request = parser.release();
    again = co_await answer(request, route);
  }
  body_share_.give_back();
  answering_ = false;
  co_return again;
}

// What can be told before a body is read.
std::optional<ApiError> HttpSession::check_header(const Parser& parser, const Route& route) {
  const HttpLimits& limits = shared_.options.http;
  const auto given_id = parser.get()["X-Request-Id"];
  if (check_request_id({given_id.data(), given_id.size()}).ok()) request_id_ = given_id;
  if (kind_ == Kind::kProbe && !is_probe(route.endpoint)) {
    return ApiError(error(Errc::kUnavailable,
                          "all of the {} HTTP connections are in use: only /health, /ready and "
                          "/metrics are answered",
                          limits.max_connections));
  }
  max_body_bytes_ =
      route.endpoint == Endpoint::kPrefill ? limits.max_body_bytes : limits.max_small_body_bytes;
  const uint64_t announced_bytes = parser.content_length().value_or(0);
  if (announced_bytes > max_body_bytes_) {
    return ApiError(
        error(Errc::kTooLarge, "body of {} bytes, limit {}", announced_bytes, max_body_bytes_));
  }
  // Small bodies are always let in: leases are released while prompts are turned away.
  if (announced_bytes <= limits.max_small_body_bytes) return std::nullopt;
  const Result<void> share = body_share_.grow_to(announced_bytes);
  if (!share.ok()) return ApiError(share.error());
  return std::nullopt;
}

awaitable<bool> HttpSession::read_body(Parser& parser) {
  const HttpLimits& limits = shared_.options.http;
  parser.body_limit(max_body_bytes_);  // for what comes in chunks
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    stream_.expires_after(limits.progress);
    co_await asio::async_write(stream_, asio::buffer(kContinue), kAwait);
  }
  while (!parser.is_done()) {
    stream_.expires_after(limits.progress);
    const auto [ec, bytes] = co_await http::async_read_some(stream_, buffer_, parser, kAwait);
    if (ec) co_return co_await refuse(ec);
    const uint64_t body_bytes = parser.get().body().size();
    if (body_bytes <= limits.max_small_body_bytes) continue;
    const Result<void> share = body_share_.grow_to(body_bytes);
    if (!share.ok()) co_return co_await turn_away(share.error());
  }
  co_return true;
}

// A request that cannot be read: says why if there is anybody left to tell.
awaitable<bool> HttpSession::refuse(error_code why) {
  // Only errors of the parser can be answered: after a timeout Beast has closed the socket, and
  // after anything else the client has.
  const bool parsed_wrong = why.category() == make_error_code(http::error::bad_method).category();
  if (!parsed_wrong || why == http::error::end_of_stream || why == http::error::partial_message) {
    co_return false;
  }
  co_return co_await turn_away(
      unreadable(why, shared_.options.http.max_header_bytes, max_body_bytes_));
}

// A request that was not read to its end; so the connection ends with the answer.
awaitable<bool> HttpSession::turn_away(ApiError why) {
  log_refused(request_id_.empty() ? "from " + endpoint_name(stream_.socket()) : request_id_,
              why.error);
  Request nothing;
  nothing.version(11);
  nothing.keep_alive(false);
  co_await send(nothing, refusal(why));
  co_await linger();
  co_return false;
}

awaitable<void> HttpSession::linger() {
  error_code ec;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ec);
  stream_.expires_after(std::chrono::seconds(2));
  std::array<char, 16384> rest;
  while (!ec) {
    const auto [read_ec, bytes] = co_await stream_.async_read_some(asio::buffer(rest), kAwait);
    ec = read_ec;
  }
}

awaitable<bool> HttpSession::answer(Request& request, const Route& route) {
  switch (route.endpoint) {
    case Endpoint::kPrefill:
      co_return co_await prefill(request, route);
    case Endpoint::kLeaseRenew:
    case Endpoint::kLeaseRelease: {
      HttpReply reply = co_await lease_call(request, route);
      co_return co_await send(request, std::move(reply));
    }
    default:
      co_return co_await send(request, simple_reply(route));
  }
}

HttpReply HttpSession::simple_reply(const Route& route) {
  namespace json = boost::json;
  Scheduler& scheduler = shared_.scheduler;
  const TimePoint now = Clock::steady().now();
  switch (route.endpoint) {
    case Endpoint::kHealth:
      return {200, R"({"status":"alive"})"};
    case Endpoint::kReady:
      if (scheduler.ready()) return {200, R"({"status":"ready"})"};
      return refusal(Error(Errc::kUnavailable, scheduler.draining()
                                                   ? "the coordinator is shutting down"
                                                   : "no worker group is ready"));
    case Endpoint::kMetrics:
      return {200, shared_.probes.text(), "text/plain; version=0.0.4; charset=utf-8"};
    case Endpoint::kVersion:
      return {200, json::serialize(json::object{{"version", MILLRACE_VERSION}})};
    case Endpoint::kModels:
      return {200, json::serialize(models_json(scheduler.offers()))};
    case Endpoint::kStatus: {
      const auto record = scheduler.find(route.id);
      if (!record) return refusal(error(Errc::kNotFound, "no request '{}'", route.id));
      return {200, json::serialize(status_json(*record, now))};
    }
    case Endpoint::kCancel: {
      const Result<void> cancelled = scheduler.cancel(route.id, "cancelled by DELETE");
      if (!cancelled.ok()) return refusal(cancelled.error());
      return {200, json::serialize(status_json(*scheduler.find(route.id), now))};
    }
    case Endpoint::kWrongMethod: {
      ApiError wrong(error(Errc::kInvalidArgument, "{} does not take {}; it takes {}",
                           quoted(std::string_view(route.path)), route.method, route.allow));
      wrong.status = 405;
      HttpReply reply = refusal(wrong);
      reply.allow = route.allow;
      return reply;
    }
    default:
      return refusal(error(Errc::kNotFound, "{} {}: no such path; docs/api.md has them all",
                           route.method, quoted(std::string_view(route.path))));
  }
}

awaitable<bool> HttpSession::send(const Request& request, HttpReply reply) {
  shared_.probes.http_answered(reply.status);
  http::response<http::string_body> response(static_cast<http::status>(reply.status),
                                             request.version());
  if (reply.status == 499) response.reason("Client Closed Request");
  response.set(http::field::server, kServer);
  response.set(http::field::content_type, reply.content_type);
  if (!request_id_.empty()) response.set("X-Request-Id", request_id_);
  if (reply.retry_after_s > 0) {
    response.set(http::field::retry_after, std::to_string(reply.retry_after_s));
  }
  if (!reply.allow.empty()) response.set(http::field::allow, reply.allow);
  response.keep_alive(request.keep_alive() && kind_ == Kind::kAny && !shared_.scheduler.draining());
  response.body() = std::move(reply.body);
  response.prepare_payload();
  if (request.method() == http::verb::head) response.body().clear();  // its length stays
  stream_.expires_after(shared_.options.http.progress);
  const auto [ec, bytes] = co_await http::async_write(stream_, response, kAwait);
  co_return !ec && response.keep_alive();
}

}  // namespace millrace::coordinator
