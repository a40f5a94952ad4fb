// SPDX-License-Identifier: Apache-2.0
// The name of a connection's other end, for the log.
#pragma once

#include <fmt/format.h>

#include <string>

#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

// "127.0.0.1:40312"; "?" once the peer is gone.
inline std::string endpoint_name(const tcp::socket& socket) {
  error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  return ec ? "?" : fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

}  // namespace millrace::coordinator
