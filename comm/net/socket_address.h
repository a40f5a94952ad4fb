// SPDX-License-Identifier: Apache-2.0
// An IP address and port, as text and as the sockets API has it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "common/result.h"

namespace millrace::comm {

class SocketAddress {
 public:
  // "host:port", "[v6]:port".
  static Result<SocketAddress> parse(const std::string& text);
  // An empty host means the wildcard address. An IPv6 address may stand in brackets.
  static Result<SocketAddress> resolve(const std::string& host, int port);
  // The address that a socket is bound to. kIo.
  static Result<SocketAddress> of_socket(int socket);
  explicit SocketAddress(const sockaddr_storage& storage) : storage_(storage) {}

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const;
  int port() const;
  // Whether only this host reaches it.
  bool is_loopback() const;
  SocketAddress with_port(int port) const;
  std::string to_string() const;

 private:
  sockaddr_storage storage_;
};

}  // namespace millrace::comm
