// SPDX-License-Identifier: Apache-2.0
#include "common/host_port.h"

#include <charconv>

namespace millrace {

Result<HostPort> HostPort::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string_view written = text.substr(0, colon);
  const std::string host = without_brackets(written);
  int port = 0;
  if (colon != std::string_view::npos) {
    const char* const end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data() + colon + 1, end, port);
    if (status != std::errc() || stop != end) port = 0;
  }
  if (host.empty() || host.find_first_of("[]") != std::string::npos || port <= 0 || port > 65535) {
    return error(Errc::kInvalidArgument,
                 "'{}' is not HOST:PORT, or [ADDRESS]:PORT for IPv6, with a port from 1 to 65535",
                 text);
  }
  return HostPort{.host = host, .port = static_cast<uint16_t>(port)};
}

std::string HostPort::to_string() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

std::string without_brackets(std::string_view host) {
  const bool has = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return std::string(has ? host.substr(1, host.size() - 2) : host);
}

}  // namespace millrace
