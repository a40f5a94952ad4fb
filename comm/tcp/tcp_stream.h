// SPDX-License-Identifier: Apache-2.0
// A non-blocking connected TCP socket, encrypted or not; its users do not see which. One thread at
// a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/net/tls_socket.h"
#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace::comm {

class TcpStream {
 public:
  using State = TlsSocket::State;
  using Io = TlsSocket::Io;

  explicit TcpStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  // Sends small messages without delay, and probes the peer: one whose host is gone is noticed
  // after `silence_s` seconds.
  void tune(int silence_s) const;

  // Call one of these before anything else; then handshake() until it is done.
  Result<void> accept_tls(const TlsContext& context);
  Result<void> connect_tls(const TlsContext& context, const std::string& host);
  bool encrypted() const { return tls_ != nullptr; }

  Io handshake() { return tls_ ? tls_->handshake() : Io{}; }
  // Into one or several pieces.
  Io read(std::span<iovec> pieces);
  Io read(std::span<std::byte> into);
  Io write(std::span<iovec> pieces);
  Io write(std::span<const std::byte> bytes);

  // Why the last call failed, as text for people.
  const std::string& reason() const { return tls_ ? tls_->reason() : reason_; }
  int descriptor() const { return socket_.get(); }

 private:
  Io outcome(ssize_t result, State wanted);

  FileDescriptor socket_;
  std::unique_ptr<TlsSocket> tls_;  // first to go
  std::string reason_;
};

}  // namespace millrace::comm
