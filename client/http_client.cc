// SPDX-License-Identifier: Apache-2.0
#include "client/http_client.h"

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

#include "common/net/http_message.h"
#include "common/net/net_stream.h"
#include "coordinator/net/awaitable.h"
#include "coordinator/text/http_text.h"

namespace millrace::client {

namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using namespace coordinator;  // the coroutine vocabulary

// Far above any manifest.
constexpr size_t kMaxAnswerBytes = 256 << 20;
// What else may end a connection without an answer than a coordinator that is gone.
constexpr std::string_view kIfCutOff =
    "; a coordinator that uses TLS is at https://HOST:PORT, and its group port answers no client";

class Exchange {
 public:
  Exchange(asio::io_context& io, const ServerAddress& server, const HttpAccess& access,
           const HttpCall& call, Duration silence,
           const std::function<void(const protocol::SseEvent&)>& on_event)
      : server_(server),
        access_(access),
        call_(call),
        silence_(silence),
        on_event_(on_event),
        stream_(tcp::socket(io), server.encrypted ? access.tls : TlsContext()),
        resolver_(io) {}

  awaitable<void> run() { result_ = co_await talk(); }
  Result<HttpAnswer> take() { return *std::move(result_); }

 private:
  awaitable<Result<HttpAnswer>> talk() {
    const auto& [host, port, encrypted] = server_;
    auto [resolve_ec, endpoints] = co_await resolver_.async_resolve(host, port, kAwait);
    if (resolve_ec) co_return error(Errc::kUnavailable, "{}: {}", host, resolve_ec.message());
    stream_.expires_after(silence_);
    auto [connect_ec, endpoint] = co_await stream_.tcp().async_connect(endpoints, kAwait);
    if (connect_ec) {
      co_return error(Errc::kUnavailable, "connect to {}: {}", server_.to_string(),
                      text(connect_ec));
    }
    stream_.expires_after(silence_);
    const error_code tls_ec = co_await stream_.connect_tls(host);
    if (tls_ec) {
      co_return error(Errc::kUnavailable, "TLS with {}: {}", server_.to_string(),
                      stream_.reason(tls_ec));
    }
    http::request<http::string_body> request(http::string_to_verb(call_.method), call_.target, 11,
                                             call_.body);
    request.set(http::field::host, server_.to_string());
    request.set(http::field::content_type, call_.content_type);
    if (!access_.token.empty()) {
      request.set(http::field::authorization, "Bearer " + access_.token);
    }
    if (!access_.traceparent.empty()) request.set("traceparent", access_.traceparent);
    request.keep_alive(false);
    request.prepare_payload();
    stream_.expires_after(silence_);
    // A refusal may come before the whole body is sent: read the answer even if the write failed.
    http::request_serializer<http::string_body> serializer(request);
    co_await write_message(stream_, serializer);
    co_return co_await read();
  }

  std::string text(error_code ec) const {
    if (ec != beast::error::timeout) return ec.message();
    return fmt::format("no data within {:.1f} s", seconds(silence_));
  }

  awaitable<Result<HttpAnswer>> read() {
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    error_code header_ec;
    while (!header_ec && !parser.is_header_done()) {
      header_ec = co_await read_more(stream_, buffer_, parser, silence_);
    }
    if (header_ec) {
      const bool cut_off = header_ec != beast::error::timeout && !server_.encrypted;
      co_return error(Errc::kPeerLost, "no answer from {}: {}{}", server_.to_string(),
                      text(header_ec), cut_off ? kIfCutOff : "");
    }
    HttpAnswer answer{static_cast<int>(parser.get().result_int()), {}};
    const auto type = parser.get()[http::field::content_type];
    const bool streamed = is_media_type({type.data(), type.size()}, "text/event-stream");
    std::array<char, 65536> piece;
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      // Some bytes rather than a full buffer, so that each event is shown when it comes.
      const error_code ec = co_await read_more(stream_, buffer_, parser, silence_);
      if (ec && ec != http::error::need_buffer) {
        co_return error(Errc::kPeerLost, "the answer is incomplete: {}", text(ec));
      }
      const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
      if (Result<void> taken = take_bytes(got, streamed, answer); !taken.ok()) {
        co_return taken.error();
      }
    }
    co_return answer;
  }

  Result<void> take_bytes(std::string_view bytes, bool streamed, HttpAnswer& answer) {
    if (!streamed) {
      if (answer.body.size() + bytes.size() > kMaxAnswerBytes) {
        return error(Errc::kTooLarge, "the answer exceeds the limit of {} bytes", kMaxAnswerBytes);
      }
      answer.body += bytes;
      return {};
    }
    MR_ASSIGN_OR_RETURN(const auto events, events_.feed(bytes));
    for (const protocol::SseEvent& event : events) {
      if (on_event_) on_event_(event);
    }
    return {};
  }

  const ServerAddress& server_;
  const HttpAccess& access_;
  const HttpCall& call_;
  const Duration silence_;
  const std::function<void(const protocol::SseEvent&)>& on_event_;
  NetStream stream_;
  tcp::resolver resolver_;
  beast::flat_buffer buffer_;
  protocol::SseParser events_;
  std::optional<Result<HttpAnswer>> result_;
};

}  // namespace

Result<HttpAnswer> HttpClient::call(
    const HttpCall& call, Duration silence,
    const std::function<void(const protocol::SseEvent&)>& on_event) const {
  asio::io_context io(1);
  Exchange exchange(io, server_, access_, call, silence, on_event);
  asio::co_spawn(io, exchange.run(), asio::detached);
  io.run();
  return exchange.take();
}

}  // namespace millrace::client
