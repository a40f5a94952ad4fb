// SPDX-License-Identifier: Apache-2.0
// The name of a connection's other end, for the log.
#pragma once

#include <string>

#include "common/endpoint/host_port.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

// "127.0.0.1:40312", "[::1]:40312"; "?" once the peer is gone.
inline std::string endpoint_name(const tcp::socket& socket) {
  error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  return ec ? "?" : HostPort{endpoint.address().to_string(), endpoint.port()}.to_string();
}

}  // namespace millrace::coordinator
