// SPDX-License-Identifier: Apache-2.0
// A TCP connection, encrypted or not; its users do not see which. Times out like beast::tcp_stream:
// every operation, including the handshake, ends by the time that was set last. One thread; one
// reader and one writer at a time. Reads and writes are coroutines that net_stream.cc alone compiles:
// Asio's own are made anew for each kind of buffer and stream, half a minute of compiling in all.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/net/tls_context.h"

namespace millrace {

class NetStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  // Not encrypted if `tls` is null.
  NetStream(boost::asio::ip::tcp::socket socket, const TlsContext& tls)
      : tcp_(std::move(socket)), context_(tls) {
    if (context_) tls_.emplace(tcp_, *context_);
  }
  NetStream(const NetStream&) = delete;
  NetStream& operator=(const NetStream&) = delete;

  // Call one of these first; they do nothing without TLS.
  boost::asio::awaitable<boost::system::error_code> accept_tls();
  // `host`: the name or address that the server's certificate must be for.
  boost::asio::awaitable<boost::system::error_code> connect_tls(const std::string& host);
  // Tells the peer that nothing follows; without TLS, only the end of the connection tells it.
  boost::asio::awaitable<void> finish();

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  const boost::asio::ip::tcp::socket& socket() const { return tcp_.socket(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  bool encrypted() const { return tls_.has_value(); }
  // What ended a handshake, as text for people: why a certificate was refused, or OpenSSL's reason.
  std::string reason(const boost::system::error_code& ec);

  template <typename Duration>
  void expires_after(Duration patience) {
    tcp_.expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(patience));
  }
  void expires_at(std::chrono::steady_clock::time_point when) { tcp_.expires_at(when); }
  void expires_never() { tcp_.expires_never(); }

  struct Received {
    boost::system::error_code error;
    size_t bytes = 0;
  };
  // As many bytes as are there, at least one without an error.
  boost::asio::awaitable<Received> read_some(boost::asio::mutable_buffer into);
  // Fills the buffer.
  boost::asio::awaitable<boost::system::error_code> read(boost::asio::mutable_buffer into);
  // Writes all of it.
  boost::asio::awaitable<boost::system::error_code> write(boost::asio::const_buffer bytes);
  boost::asio::awaitable<boost::system::error_code> write(
      std::vector<boost::asio::const_buffer> pieces);

 private:
  boost::beast::tcp_stream tcp_;
  TlsContext context_;
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace millrace
