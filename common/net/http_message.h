// SPDX-License-Identifier: Apache-2.0
// Reads and writes Beast messages over a NetStream. Beast's own async_read() and async_write() compile
// all of Asio's and OpenSSL's operations for each kind of message.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/serializer.hpp>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/net/net_stream.h"

namespace millrace {

// The pieces of a buffer sequence, which outlives them.
template <typename Buffers>
std::vector<boost::asio::const_buffer> pieces_of(const Buffers& buffers) {
  std::vector<boost::asio::const_buffer> pieces;
  for (const auto& piece : boost::beast::buffers_range_ref(buffers)) pieces.push_back(piece);
  return pieces;
}

// With serializer.split(), the header alone. `serializer` outlives the call.
template <bool is_request, typename Body>
boost::asio::awaitable<boost::system::error_code> write_message(
    NetStream& stream, boost::beast::http::serializer<is_request, Body>& serializer) {
  boost::system::error_code ec;
  while (!ec && !(serializer.split() ? serializer.is_header_done() : serializer.is_done())) {
    std::vector<boost::asio::const_buffer> pieces;
    serializer.next(ec, [&pieces](boost::system::error_code&, const auto& buffers) {
      pieces = pieces_of(buffers);
    });
    if (ec) break;
    ec = co_await stream.write(pieces);
    if (!ec) serializer.consume(boost::asio::buffer_size(pieces));
  }
  co_return ec;
}

// Parses what `buffer` has, and what follows if that is not enough for a step: a header, or some of
// the body. Each wait for bytes may take `silence`; none: what the stream's own time allows. Errors
// are the parser's and the stream's. The arguments outlive the call.
template <bool is_request, typename Body>
boost::asio::awaitable<boost::system::error_code> read_more(
    NetStream& stream, boost::beast::flat_buffer& buffer,
    boost::beast::http::parser<is_request, Body>& parser, std::optional<Duration> silence = {}) {
  constexpr size_t kReadBytes = 64 << 10;
  boost::system::error_code ec = boost::beast::http::error::need_more;
  if (buffer.size() > 0) buffer.consume(parser.put(buffer.data(), ec));
  while (ec == boost::beast::http::error::need_more) {
    if (silence) stream.expires_after(*silence);
    const auto [read_ec, bytes] = co_await stream.read_some(buffer.prepare(kReadBytes));
    if (read_ec == boost::asio::error::eof && parser.got_some()) {
      parser.put_eof(ec);
      co_return ec;
    }
    if (read_ec) co_return read_ec;
    buffer.commit(bytes);
    buffer.consume(parser.put(buffer.data(), ec));
  }
  co_return ec;
}

}  // namespace millrace
