// SPDX-License-Identifier: Apache-2.0
// One end of a TLS connection over a non-blocking socket, for users of sockets without Asio. Sends
// without SIGPIPE. One thread at a time; the socket outlives it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/net/tls_context.h"
#include "common/result.h"

struct ssl_st;

namespace millrace {

class TlsSocket {
 public:
  enum class State {
    kDone,
    kWantsRead,   // call again with the same arguments once the socket is readable
    kWantsWrite,  // or writable
    kEnded,       // the peer said that nothing follows, or closed
    kFailed,      // reason() says why
  };
  struct Io {
    State state = State::kDone;
    size_t bytes = 0;
  };

  static Result<std::unique_ptr<TlsSocket>> server(const TlsContext& context, int socket);
  // `host`: the name or address that the server's certificate must be for.
  static Result<std::unique_ptr<TlsSocket>> client(const TlsContext& context, int socket,
                                                   const std::string& host);
  ~TlsSocket();
  TlsSocket(const TlsSocket&) = delete;
  TlsSocket& operator=(const TlsSocket&) = delete;

  // Call first, until it is done.
  Io handshake();
  // Io::bytes is at least one if anything was read or written.
  Io read(std::span<std::byte> into);
  Io write(std::span<const std::byte> bytes);

  // As text for people: why a certificate was refused, or OpenSSL's reason.
  const std::string& reason() const { return reason_; }

 private:
  TlsSocket(TlsContext context, ssl_st* ssl) : context_(std::move(context)), ssl_(ssl) {}
  static Result<std::unique_ptr<TlsSocket>> make(const TlsContext& context, int socket);
  Io outcome(int result, size_t bytes);

  const TlsContext context_;
  ssl_st* const ssl_;
  std::string reason_;
};

}  // namespace millrace
