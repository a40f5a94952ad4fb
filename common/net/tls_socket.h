// One end of a TLS connection over a socket that does not wait, for who drives sockets without Asio.
// Sends without SIGPIPE. One thread at a time; the socket outlives it.
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
    kWantsRead,   // call again with the same arguments once the socket can be read
    kWantsWrite,  // or written to
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

  // To be called first, until it is done.
  Io handshake();
  // At least one byte, if any came or went.
  Io read(std::span<std::byte> into);
  Io write(std::span<const std::byte> bytes);

  // For people: why a certificate was refused, or OpenSSL's reason.
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
