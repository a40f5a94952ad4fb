// SPDX-License-Identifier: Apache-2.0
#include "client/server_address.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "common/host_port.h"

namespace millrace::client {

namespace {

bool take_prefix(std::string_view prefix, std::string_view& text) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool is_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), port);
  return ec == std::errc() && end == text.data() + text.size() && port > 0;
}

}  // namespace

Result<ServerAddress> ServerAddress::parse(std::string_view text) {
  ServerAddress address;
  std::string_view rest = text;
  address.encrypted = take_prefix("https://", rest);
  if (!address.encrypted) take_prefix("http://", rest);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  std::string_view port;
  bool has_port = false;
  if (rest.starts_with('[')) {
    const size_t end = std::min(rest.find(']'), rest.size());
    if (end < rest.size()) address.host = rest.substr(1, end - 1);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    has_port = take_prefix(":", rest);
    if (!has_port && !rest.empty()) address.host.clear();
    port = rest;
  } else {
    const size_t colon = std::min(rest.rfind(':'), rest.size());
    address.host = rest.substr(0, colon);
    has_port = colon < rest.size();
    if (has_port) port = rest.substr(colon + 1);
    if (address.host.find(':') != std::string::npos) address.host.clear();  // IPv6
  }
  if (address.host.empty() || address.host.find('/') != std::string::npos) {
    return error(Errc::kInvalidArgument,
                 "'{}' is not HOST[:PORT] or https://HOST[:PORT]; an IPv6 address needs brackets",
                 text);
  }
  if (has_port) {
    if (!is_port(port)) {
      return error(Errc::kInvalidArgument, "the port '{}' is not a number from 1 to 65535", port);
    }
    address.port = port;
  }
  return address;
}

std::string ServerAddress::to_string() const {
  return HostPort{host, static_cast<uint16_t>(std::atoi(port.c_str()))}.to_string();
}

}  // namespace millrace::client
