// SPDX-License-Identifier: Apache-2.0
// The client end: its caller's thread sends, waits and receives.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/api/transport.h"
#include "comm/net/socket_address.h"
#include "comm/tcp/piece_cursor.h"
#include "comm/tcp/tcp_stream.h"
#include "comm/tcp/wire.h"

namespace millrace::comm {

class TcpConnection final : public TransportConnection {
 public:
  // `address`: `where`, "host:port", with its scheme in front. `tls`: null if not encrypted.
  static Result<std::unique_ptr<TcpConnection>> open(const std::string& address,
                                                     const std::string& where,
                                                     const TlsContext& tls,
                                                     const std::string& capability,
                                                     Deadline deadline);

  Result<Reply> call_into(std::string_view request_header, Destination destination,
                          Deadline deadline) override;
  void interrupt() override;
  void observe(PayloadObserver* observer) override { observer_ = observer; }
  std::string transport_name() const override { return "tcp"; }
  TransportStats stats() const override { return stats_; }

 private:
  TcpConnection(std::string address, TcpStream stream, FileDescriptor interrupts)
      : address_(std::move(address)),
        stream_(std::move(stream)),
        interrupts_(std::move(interrupts)) {}

  Result<void> connect(const SocketAddress& target, Deadline deadline);
  Result<void> start_tls(const TlsContext& tls, const std::string& host, Deadline deadline);
  Result<void> say_hello(const std::string& capability, Deadline deadline);
  Result<Reply> exchange(std::string_view request_header, Destination destination,
                         Deadline deadline);
  Result<Reply> receive(Destination destination, Deadline deadline);
  // The cursor holds room for the reply's header, and then for its payload.
  Result<void> fill_reply(const Reply& reply, Deadline deadline);
  // Until all pieces of the cursor have been sent or filled.
  Result<void> send_all(Deadline deadline);
  Result<void> fill_all(Deadline deadline, const char* what);
  // Fills some of what the cursor has left, once there is something to read.
  Result<void> fill_more(Deadline deadline, const char* what);
  Result<void> fill(std::span<std::byte> into, Deadline deadline, const char* what);
  // Waits until the stream can go on from `state`.
  Result<void> wait(TcpStream::State state, Deadline deadline, const char* what);
  Error failed(const Error& why) const;

  const std::string address_;
  TcpStream stream_;
  const FileDescriptor interrupts_;  // an eventfd: readable once interrupted
  std::atomic<bool> interrupted_ = false;
  PieceCursor cursor_;
  uint64_t call_ = 0;
  std::optional<Error> broken_;
  // A refused call leaves the connection as it was.
  std::optional<Error> refused_;
  TransportStats stats_;
  PayloadObserver* observer_ = nullptr;
};

}  // namespace millrace::comm
