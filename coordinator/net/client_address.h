// SPDX-License-Identifier: Apache-2.0
// Who is at a connection's other end: the client, for limits by client, and a name for the log.
#pragma once

#include <algorithm>
#include <string>

#include "common/host_port.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

// The IPv4 address; for IPv6 the /64 network, all of which one machine may have.
inline std::string client_of(const asio::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  if (address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::make_address_v6(bytes).to_string() + "/64";
}

inline std::string client_of(const tcp::socket& socket) {
  error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  return ec ? "?" : client_of(endpoint.address());
}

// "127.0.0.1:40312", "[::1]:40312"; "?" once the peer is gone.
inline std::string endpoint_name(const tcp::socket& socket) {
  error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  return ec ? "?" : HostPort{endpoint.address().to_string(), endpoint.port()}.to_string();
}

}  // namespace millrace::coordinator
