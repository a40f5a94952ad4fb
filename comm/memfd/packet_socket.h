// SPDX-License-Identifier: Apache-2.0
// A socket between two processes of one host that keeps message boundaries and carries descriptors:
// SOCK_SEQPACKET with an abstract name, which exists in no file system and ends with its listener.
// It can be found only from the same network namespace. Only connect() and wait() block.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace::comm {

inline constexpr size_t kMaxPacketBytes = size_t{128} << 10;
inline constexpr size_t kMaxPacketDescriptors = 8;

// What a client of a MemfdServer sends: a byte for the kind of message, and after kMemfdAsk the
// request.
inline constexpr char kMemfdAsk = 'A';
inline constexpr std::string_view kMemfdDone = "D";

class PacketSocket {
 public:
  struct Packet {
    std::string text;
    std::vector<FileDescriptor> descriptors;
  };

  static Result<PacketSocket> listen(const std::string& name);
  // kPeerLost: nobody listens under this name here.
  static Result<PacketSocket> connect(const std::string& name, Deadline deadline);
  // Nothing if nobody is waiting.
  Result<std::optional<PacketSocket>> accept() const;

  // The user of the process at the other end, at the time it connected or began to listen.
  Result<uid_t> peer_user() const;
  // kPeerLost; kExhausted: the other end does not read.
  Result<void> send(std::string_view text, std::span<const int> descriptors = {}) const;
  // Nothing if nothing has come. kPeerLost once the other end has closed.
  Result<std::optional<Packet>> receive() const;
  // Waits until there is something to receive or the connection has ended; returns true then.
  bool wait(Deadline deadline) const;
  // Ends the connection for both ends and for waiting threads. Any thread.
  void shut_down() const;

  int descriptor() const { return socket_.get(); }

 private:
  explicit PacketSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

}  // namespace millrace::comm
