// SPDX-License-Identifier: Apache-2.0
#include "common/net/tls_socket.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace millrace {

namespace {

bool would_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

// Like OpenSSL's own socket BIO, but with MSG_NOSIGNAL.
int send_bytes(BIO* bio, const char* bytes, size_t count, size_t* sent) {
  BIO_clear_retry_flags(bio);
  const ssize_t result = ::send(socket_of(bio), bytes, count, MSG_NOSIGNAL);
  if (result < 0 && would_wait()) BIO_set_retry_write(bio);
  *sent = result > 0 ? static_cast<size_t>(result) : 0;
  return result > 0;
}

int receive_bytes(BIO* bio, char* into, size_t count, size_t* received) {
  BIO_clear_retry_flags(bio);
  const ssize_t result = ::recv(socket_of(bio), into, count, 0);
  if (result < 0 && would_wait()) BIO_set_retry_read(bio);
  if (result == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  *received = result > 0 ? static_cast<size_t>(result) : 0;
  return result > 0;
}

long control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
  return 0;
}

BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "quiet socket");
    if (made == nullptr) return made;
    BIO_meth_set_write_ex(made, send_bytes);
    BIO_meth_set_read_ex(made, receive_bytes);
    BIO_meth_set_ctrl(made, control);
    return made;
  }();
  return method;
}

std::string openssl_reason() {
  const unsigned long code = ERR_get_error();
  if (code == 0) return "the connection broke off";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  const char* const reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : text.data();
}

}  // namespace

Result<std::unique_ptr<TlsSocket>> TlsSocket::make(const TlsContext& context, int socket) {
  SSL* const ssl = SSL_new(context->native_handle());
  if (ssl == nullptr) return Error(Errc::kExhausted, "no memory for a TLS connection");
  std::unique_ptr<TlsSocket> made(new TlsSocket(context, ssl));
  BIO_METHOD* const method = socket_method();
  BIO* const bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return Error(Errc::kExhausted, "no memory for a TLS connection");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return made;
}

Result<std::unique_ptr<TlsSocket>> TlsSocket::server(const TlsContext& context, int socket) {
  MR_ASSIGN_OR_RETURN(auto made, make(context, socket));
  SSL_set_accept_state(made->ssl_);
  return made;
}

Result<std::unique_ptr<TlsSocket>> TlsSocket::client(const TlsContext& context, int socket,
                                                     const std::string& host) {
  MR_ASSIGN_OR_RETURN(auto made, make(context, socket));
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(made->ssl_);
  X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) != 1) {
    ERR_clear_error();
    if (X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size()) != 1) {
      return error(Errc::kInvalidArgument, "\"{}\" is no name for a certificate", host);
    }
    // The server may have several names; an address is not a name.
    SSL_set_tlsext_host_name(made->ssl_, host.c_str());
  }
  SSL_set_connect_state(made->ssl_);
  return made;
}

TlsSocket::~TlsSocket() {
  SSL_free(ssl_);  // also frees its BIO
}

TlsSocket::Io TlsSocket::handshake() {
  ERR_clear_error();
  return outcome(SSL_do_handshake(ssl_), 0);
}

TlsSocket::Io TlsSocket::read(std::span<std::byte> into) {
  ERR_clear_error();
  size_t bytes = 0;
  const int result = SSL_read_ex(ssl_, into.data(), into.size(), &bytes);
  return outcome(result, bytes);
}

TlsSocket::Io TlsSocket::write(std::span<const std::byte> bytes) {
  ERR_clear_error();
  size_t sent = 0;
  const int result = SSL_write_ex(ssl_, bytes.data(), bytes.size(), &sent);
  return outcome(result, sent);
}

TlsSocket::Io TlsSocket::outcome(int result, size_t bytes) {
  if (result == 1) return {.state = State::kDone, .bytes = bytes};
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return {.state = State::kWantsRead};
    case SSL_ERROR_WANT_WRITE:
      return {.state = State::kWantsWrite};
    case SSL_ERROR_ZERO_RETURN:
      return {.state = State::kEnded};
    default:
      break;
  }
  const long verified = SSL_get_verify_result(ssl_);
  reason_ = openssl_reason();
  if (verified != X509_V_OK) {
    reason_ = fmt::format("{}: {}", reason_, X509_verify_cert_error_string(verified));
  }
  ERR_clear_error();
  return {.state = State::kFailed};
}

}  // namespace millrace
