// SPDX-License-Identifier: Apache-2.0
// Writes a Beast message to a NetStream. Beast's own async_write() compiles all of Asio's and OpenSSL's
// operations for each kind of message.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/serializer.hpp>
#include <vector>

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

}  // namespace millrace
