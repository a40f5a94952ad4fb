#include "coordinator/http/http_session.h"

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json.hpp>

#include "common/log.h"
#include "common/quoted.h"
#include "coordinator/api/request_json.h"
#include "coordinator/http/body_pace.h"
#include "coordinator/net/client_address.h"
#include "coordinator/net/endpoint_name.h"
#include "coordinator/schedule/request_log.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {

namespace {

constexpr std::string_view kServer = "millrace";
// At a time. A buffer may hold as much beside it that waits for its end.
constexpr size_t kReadBytes = ReadBuffer::kMaxBytes / 2;
// Answers up to this size are in no budget.
constexpr uint64_t kSmallReplyBytes = 64 << 10;

Route route_of(const RequestReader::Header& header) {
  return find_route({header.method_string().data(), header.method_string().size()},
                    {header.target().data(), header.target().size()});
}

bool is_probe(Endpoint endpoint, ConnectionTable::Kind kind) {
  return endpoint == Endpoint::kHealth || endpoint == Endpoint::kReady ||
         endpoint == Endpoint::kMetrics ||
         (endpoint == Endpoint::kVersion && kind == ConnectionTable::Kind::kAdmin);
}

}  // namespace

HttpSession::HttpSession(tcp::socket socket, HttpShared& shared,
                         ConnectionTable::Admission admission)
    : shared_(shared),
      admission_(std::move(admission)),
      stream_(std::move(socket)),
      body_share_(shared.bodies, client_of(stream_.socket())),
      reply_share_(shared.replies, client_of(stream_.socket())) {
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
  RequestReader reader(limits.max_header_bytes, buffer_);
  request_id_.clear();
  stream_.expires_after(for_probes() ? limits.probe_idle : limits.idle);
  while (!reader.has_header()) {
    const bool more = co_await read_more(reader);
    if (!more) co_return false;
  }
  answering_ = true;
  const Route route = route_of(reader.header());
  bool again = false;
  if (auto wrong = check_header(reader, route)) {
    co_await turn_away(*std::move(wrong));
  } else if (co_await read_body(reader, route)) {
    // What waits from here on has deadlines of its own.
    stream_.expires_never();
    Request request = reader.release();
    again = co_await answer(request, route);
  }
  body_share_.give_back();
  answering_ = false;
  co_return again;
}

// What can be told before a body is read.
std::optional<ApiError> HttpSession::check_header(const RequestReader& reader, const Route& route) {
  const auto given_id = reader.header()["X-Request-Id"];
  if (check_request_id({given_id.data(), given_id.size()}).ok()) request_id_ = given_id;
  if (for_probes() && !is_probe(route.endpoint, admission_.kind)) {
    return ApiError(*admission_.only_probes);
  }
  const uint64_t announced_bytes = reader.announced_bytes();
  const uint64_t max_bytes = max_body_bytes(route);
  if (announced_bytes > max_bytes) {
    return ApiError(
        error(Errc::kTooLarge, "body of {} bytes, limit {}", announced_bytes, max_bytes));
  }
  return hold_body(announced_bytes);
}

uint64_t HttpSession::max_body_bytes(const Route& route) const {
  const HttpLimits& limits = shared_.options.http;
  return route.endpoint == Endpoint::kPrefill ? limits.max_body_bytes : limits.max_small_body_bytes;
}

// Small bodies are always let in: leases are released while prompts are turned away.
std::optional<ApiError> HttpSession::hold_body(uint64_t bytes) {
  if (bytes <= shared_.options.http.max_small_body_bytes) return std::nullopt;
  const Result<void> share = body_share_.grow_to(bytes);
  if (!share.ok()) return ApiError(share.error());
  return std::nullopt;
}

awaitable<bool> HttpSession::read_body(RequestReader& reader, const Route& route) {
  const HttpLimits& limits = shared_.options.http;
  reader.limit_body(max_body_bytes(route));  // for what comes in chunks
  if (beast::iequals(reader.header()[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    stream_.expires_after(limits.progress);
    co_await asio::async_write(stream_, asio::buffer(kContinue), kAwait);
  }
  const BodyPace pace{
      .piece = limits.progress, .whole = limits.body_time, .min_bytes_per_s = limits.min_body_rate};
  const TimePoint began = Clock::steady().now();
  while (!reader.done()) {
    stream_.expires_at(pace.next_due(began, Clock::steady().now(), reader.body_bytes()));
    const bool more = co_await read_more(reader);
    if (!more) co_return false;
    // A string that grows has up to twice its length; a body of the largest size still has room.
    if (auto no_room = hold_body(std::min(reader.held_bytes(), max_body_bytes(route)))) {
      co_await turn_away(*std::move(no_room));
      co_return false;
    }
  }
  co_return true;
}

// The next piece of a request, from the buffer or the socket.
awaitable<bool> HttpSession::read_more(RequestReader& reader) {
  if (reader.starved()) {
    const auto [ec, bytes] = co_await stream_.async_read_some(
        buffer_.bytes().prepare(std::min(buffer_.room(), kReadBytes)), kAwait);
    if (ec == beast::error::timeout && reader.has_header()) log_too_slow(reader);
    if (ec) co_return false;
    buffer_.bytes().commit(bytes);
  }
  if (auto wrong = reader.take()) {
    co_await turn_away(*std::move(wrong));
    co_return false;
  }
  co_return true;
}

void HttpSession::log_too_slow(const RequestReader& reader) const {
  log_refused(request_name(), error(Errc::kDeadlineExceeded, "its body came too slowly: {} bytes",
                                    reader.body_bytes()));
}

// In the log.
std::string HttpSession::request_name() const {
  return request_id_.empty() ? "from " + endpoint_name(stream_.socket()) : request_id_;
}

// A request that was not read to its end; so the connection ends with the answer.
awaitable<void> HttpSession::turn_away(ApiError why) {
  log_refused(request_name(), why.error);
  Request nothing;
  nothing.version(11);
  nothing.keep_alive(false);
  co_await send(nothing, refusal(why));
  co_await linger();
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
  if (shared_.options.faults.answering) shared_.options.faults.answering(route.path);
  switch (route.endpoint) {
    case Endpoint::kPrefill:
      co_return co_await prefill(request, route);
    case Endpoint::kEvents:
      co_return co_await follow_prefill(request, route);
    case Endpoint::kLeaseRenew:
    case Endpoint::kLeaseRelease: {
      HttpReply reply = co_await lease_call(request, route);
      co_return co_await send(request, std::move(reply));
    }
    case Endpoint::kStatus:
    case Endpoint::kCancel: {
      HttpReply reply = co_await status_reply(route);
      co_return co_await send(request, std::move(reply));
    }
    default:
      co_return co_await send(request, simple_reply(route));
  }
}

awaitable<HttpReply> HttpSession::status_reply(const Route& route) {
  const auto record = shared_.scheduler.find(route.id);
  if (!record) co_return refusal(error(Errc::kNotFound, "no request '{}'", route.id));
  if (route.endpoint == Endpoint::kCancel) {
    const Result<void> cancelled = shared_.scheduler.cancel(route.id, "cancelled by DELETE");
    if (!cancelled.ok()) co_return refusal(cancelled.error());
  }
  const std::string manifest = co_await write_manifest(*record);
  co_return HttpReply{200, status_text(*record, Clock::steady().now(), manifest)};
}

// "" of one that has none.
awaitable<std::string> HttpSession::write_manifest(const coordinator::Request& record) {
  if (!record.result) co_return std::string();
  // The manifest within its message, which lives as long.
  std::shared_ptr<const protocol::Manifest> manifest(record.result, &record.result->manifest());
  co_return co_await write_manifest(std::move(manifest), /*is_done=*/true);
}

awaitable<std::string> HttpSession::write_manifest(
    std::shared_ptr<const protocol::Manifest> manifest, bool is_done) {
  auto work = [this, &manifest, is_done]() -> awaitable<std::string> {
    if (shared_.options.faults.writing) shared_.options.faults.writing();
    co_return manifest_text(*manifest, is_done);
  };
  co_return co_await asio::co_spawn(shared_.writers, work(), asio::use_awaitable);
}

HttpReply HttpSession::simple_reply(const Route& route) {
  namespace json = boost::json;
  Scheduler& scheduler = shared_.scheduler;
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

// As bodies: a client that does not read its answers may not fill the memory with them.
std::optional<ApiError> HttpSession::hold_reply(uint64_t bytes) {
  if (bytes <= kSmallReplyBytes) return std::nullopt;
  const Result<void> share = reply_share_.grow_to(bytes);
  if (!share.ok()) return ApiError(Error(share.error().code, "answer: " + share.error().message));
  return std::nullopt;
}

awaitable<bool> HttpSession::send(const Request& request, HttpReply reply) {
  if (const auto no_room = hold_reply(reply.body.size())) reply = refusal(*no_room);
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
  response.keep_alive(request.keep_alive() && !for_probes() && !shared_.scheduler.draining());
  response.body() = std::move(reply.body);
  response.prepare_payload();
  if (request.method() == http::verb::head) response.body().clear();  // its length stays
  stream_.expires_after(shared_.options.http.progress);
  const auto [ec, bytes] = co_await http::async_write(stream_, response, kAwait);
  reply_share_.give_back();
  co_return !ec && response.keep_alive();
}

}  // namespace millrace::coordinator
