// SPDX-License-Identifier: Apache-2.0
#include "common/net/net_stream.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace millrace {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// How long to wait for the other side's goodbye, which nobody needs.
constexpr std::chrono::seconds kGoodbye{1};

}  // namespace

asio::awaitable<error_code> NetStream::accept_tls() {
  if (!tls_) co_return error_code();
  const auto [ec] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kAwait);
  co_return ec;
}

asio::awaitable<error_code> NetStream::connect_tls(const std::string& host) {
  if (!tls_) co_return error_code();
  error_code is_no_address;
  asio::ip::make_address(host, is_no_address);
  // The server may have several names; an address is not a name.
  if (is_no_address) SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
  tls_->set_verify_callback(asio::ssl::host_name_verification(host));
  const auto [ec] = co_await tls_->async_handshake(asio::ssl::stream_base::client, kAwait);
  co_return ec;
}

asio::awaitable<NetStream::Received> NetStream::read_some(asio::mutable_buffer into) {
  if (tls_) {
    const auto [ec, bytes] = co_await tls_->async_read_some(into, kAwait);
    co_return Received{ec, bytes};
  }
  const auto [ec, bytes] = co_await tcp_.async_read_some(into, kAwait);
  co_return Received{ec, bytes};
}

asio::awaitable<error_code> NetStream::read(asio::mutable_buffer into) {
  if (tls_) {
    const auto [ec, bytes] = co_await asio::async_read(*tls_, into, kAwait);
    co_return ec;
  }
  const auto [ec, bytes] = co_await asio::async_read(tcp_, into, kAwait);
  co_return ec;
}

asio::awaitable<error_code> NetStream::write(asio::const_buffer bytes) {
  std::vector<asio::const_buffer> pieces(1, bytes);
  co_return co_await write(std::move(pieces));
}

asio::awaitable<error_code> NetStream::write(std::vector<asio::const_buffer> pieces) {
  if (tls_) {
    const auto [ec, bytes] = co_await asio::async_write(*tls_, pieces, kAwait);
    co_return ec;
  }
  const auto [ec, bytes] = co_await asio::async_write(tcp_, pieces, kAwait);
  co_return ec;
}

asio::awaitable<void> NetStream::finish() {
  if (!tls_ || !socket().is_open()) co_return;
  expires_after(kGoodbye);
  co_await tls_->async_shutdown(kAwait);
}

std::string NetStream::reason(const error_code& ec) {
  if (ec == boost::beast::error::timeout) return "it took too long";
  if (ec.category() == asio::error::get_ssl_category()) {
    const int why = ERR_GET_REASON(static_cast<unsigned long>(ec.value()));
    // What the first bytes of a peer without TLS look like to OpenSSL.
    if (why == SSL_R_WRONG_VERSION_NUMBER || why == SSL_R_HTTP_REQUEST) {
      return fmt::format("the other side does not use TLS: {}", ec.message());
    }
  }
  const long verified = tls_ ? SSL_get_verify_result(tls_->native_handle()) : X509_V_OK;
  if (verified == X509_V_OK) return ec.message();
  // All that host_name_verification leaves behind.
  if (verified == X509_V_ERR_UNSPECIFIED) {
    return fmt::format("{}: the certificate is for another host", ec.message());
  }
  return fmt::format("{}: {}", ec.message(), X509_verify_cert_error_string(verified));
}

}  // namespace millrace
