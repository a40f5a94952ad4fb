// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/request_intake.h"

#include <algorithm>

#include "common/quote.h"
#include "coordinator/http/body_pace.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/net/client_address.h"
#include "coordinator/requests/request_log.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {

namespace {

// Read at a time. The buffer may hold as much again of an unfinished piece.
constexpr size_t kReadBytes = ReadBuffer::kMaxBytes / 2;

Route route_of(const RequestReader::Header& header) {
  return find_route({header.method_string().data(), header.method_string().size()},
                    {header.target().data(), header.target().size()});
}

// "" if there is none.
Result<std::string_view> authorization_of(const RequestReader::Header& header) {
  if (header.count(http::field::authorization) > 1) {
    return Error(Errc::kInvalidArgument, "more than one Authorization header");
  }
  const auto value = header[http::field::authorization];
  return std::string_view(value.data(), value.size());
}

// Bodies are read as they are sent: a small one that is compressed may be a large one.
std::optional<ApiError> check_coding(const RequestReader::Header& header) {
  const auto [begin, end] = header.equal_range(http::field::content_encoding);
  for (auto field = begin; field != end; ++field) {
    const std::string_view coding(field->value().data(), field->value().size());
    if (coding.empty() || beast::iequals(coding, "identity")) continue;
    return ApiError(
        error(Errc::kUnsupported, "the body's Content-Encoding is {}; send it as it is, without",
              quote(coding)),
        kUnsupportedMedia);
  }
  return std::nullopt;
}

}  // namespace

RequestIntake::RequestIntake(NetStream& stream, ReadBuffer& buffer, RequestGate& gate,
                             const HttpLimits& limits)
    : stream_(stream),
      buffer_(buffer),
      gate_(gate),
      limits_(limits),
      reader_(limits.max_header_bytes, buffer) {}

awaitable<RequestIntake::Step> RequestIntake::read_header(TimePoint due) {
  stream_.expires_at(due);
  while (!reader_.has_header()) {
    const Step step = co_await read_more();
    if (step != Step::kRead) co_return step;
  }
  route_ = route_of(reader_.header());
  const auto given_id = reader_.header()["X-Request-Id"];
  if (check_request_id({given_id.data(), given_id.size()}).ok()) request_id_ = given_id;
  co_return Step::kRead;
}

awaitable<RequestIntake::Step> RequestIntake::read_body() {
  const auto authorization = authorization_of(reader_.header());
  if (!authorization.ok()) co_return refuse(ApiError(authorization.error()));
  if (auto wrong = gate_.check(route_, *authorization, reader_.announced_bytes())) {
    co_return refuse(*std::move(wrong));
  }
  if (auto coded = check_coding(reader_.header())) co_return refuse(*std::move(coded));
  reader_.limit_body(gate_.max_body_bytes(route_));  // for chunked bodies
  // An HTTP/1.0 client would take it for the answer.
  constexpr unsigned kHttp11 = 11;
  if (reader_.header().version() >= kHttp11 &&
      beast::iequals(reader_.header()[http::field::expect], "100-continue")) {
    co_await send_continue();
  }
  const BodyPace pace{.piece = limits_.progress,
                      .whole = limits_.body_time,
                      .min_bytes_per_s = limits_.min_body_rate};
  const TimePoint began = Clock::steady().now();
  while (!reader_.done()) {
    stream_.expires_at(pace.next_due(began, Clock::steady().now(), reader_.body_bytes()));
    const Step step = co_await read_more();
    if (step != Step::kRead) co_return step;
    if (auto no_room = gate_.hold(route_, reader_.held_bytes())) {
      co_return refuse(*std::move(no_room));
    }
  }
  co_return Step::kRead;
}

awaitable<RequestIntake::Step> RequestIntake::read_more() {
  if (reader_.starved()) {
    const auto [ec, bytes] =
        co_await stream_.read_some(buffer_.bytes().prepare(std::min(buffer_.room(), kReadBytes)));
    if (ec == beast::error::timeout && reader_.has_header()) {
      log_refused(name(), error(Errc::kDeadlineExceeded, "the body came too slowly: {} bytes",
                                reader_.body_bytes()));
    }
    if (ec) co_return Step::kGone;
    buffer_.bytes().commit(bytes);
  }
  if (auto wrong = reader_.take()) co_return refuse(*std::move(wrong));
  co_return Step::kRead;
}

awaitable<void> RequestIntake::send_continue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  stream_.expires_after(limits_.progress);
  co_await stream_.write(asio::buffer(kContinue));
}

RequestIntake::Step RequestIntake::refuse(ApiError why) {
  refusal_ = std::move(why);
  return Step::kRefused;
}

std::string RequestIntake::name() const {
  return request_id_.empty() ? "from " + endpoint_name(stream_.socket()) : request_id_;
}

}  // namespace millrace::coordinator
