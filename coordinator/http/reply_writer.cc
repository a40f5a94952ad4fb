// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/reply_writer.h"

#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/serializer.hpp>

#include "common/net/http_message.h"
#include "protocol/sse_parser.h"

namespace millrace::coordinator {

namespace http = boost::beast::http;

namespace {

// Answers up to this size count against no budget.
constexpr uint64_t kSmallReplyBytes = 64 << 10;

}  // namespace

ReplyWriter::ReplyWriter(NetStream& stream, HttpShared& shared, std::string client, bool closes)
    : stream_(stream),
      shared_(shared),
      closes_(closes),
      share_(shared.replies, std::move(client)) {}

std::optional<ApiError> ReplyWriter::hold(uint64_t bytes) {
  if (bytes <= kSmallReplyBytes) return std::nullopt;
  const Result<void> held = share_.grow_to(bytes);
  if (held.ok()) return std::nullopt;
  return ApiError(Error(held.error().code, "answer: " + held.error().message));
}

bool ReplyWriter::keeps_alive() const {
  return request_.keep_alive && !closes_ && !shared_.scheduler.draining();
}

awaitable<bool> ReplyWriter::send(HttpReply reply) {
  if (const auto no_room = hold(reply.body.size())) reply = error_reply(*no_room, request_.id);
  status_ = reply.status;
  shared_.metrics.http_answered(status_);
  const bool keep_alive = keeps_alive();
  auto response = to_response(std::move(reply), request_, keep_alive);
  response.set(kInstanceHeader, shared_.instance);
  stream_.expires_after(shared_.options.http.progress);
  http::response_serializer<http::string_body> serializer(response);
  const error_code ec = co_await write_message(stream_, serializer);
  share_.give_back();
  co_return !ec && response.keep_alive();
}

awaitable<bool> ReplyWriter::send_error(const ApiError& why) {
  HttpReply reply = error_reply(why, request_.id);
  co_return co_await send(std::move(reply));
}

awaitable<bool> ReplyWriter::begin_events() {
  status_ = 200;
  shared_.metrics.http_answered(status_);
  http::response<http::empty_body> head(http::status::ok, request_.version);
  head.set(http::field::content_type, "text/event-stream");
  head.set(http::field::cache_control, "no-cache");
  set_ids(request_, head);
  head.set(kInstanceHeader, shared_.instance);
  request_.keep_alive = keeps_alive();
  head.keep_alive(request_.keep_alive);
  head.chunked(true);
  http::response_serializer<http::empty_body> serializer(head);
  stream_.expires_after(shared_.options.http.progress);
  serializer.split(true);  // the header alone
  const error_code ec = co_await write_message(stream_, serializer);
  co_return !ec;
}

awaitable<bool> ReplyWriter::send_events(std::string text) {
  if (const auto no_room = hold(text.size())) {
    text = protocol::to_text({"error", no_room->to_json(request_.id)});
  }
  stream_.expires_after(shared_.options.http.progress);
  const auto chunk = http::make_chunk(asio::buffer(text));
  const error_code ec = co_await stream_.write(pieces_of(chunk));
  share_.give_back();
  co_return !ec;
}

awaitable<bool> ReplyWriter::end_events() {
  stream_.expires_after(shared_.options.http.progress);
  const auto chunk = http::make_chunk_last();
  const error_code ec = co_await stream_.write(pieces_of(chunk));
  co_return !ec && request_.keep_alive;
}

awaitable<bool> ReplyWriter::client_listens() {
  static constexpr std::string_view kStillHere = "HTTP/1.1 100 Continue\r\n\r\n";
  if (request_.version < 11) co_return true;
  stream_.expires_after(shared_.options.http.progress);
  const error_code ec = co_await stream_.write(asio::buffer(kStillHere));
  co_return !ec;
}

}  // namespace millrace::coordinator
