// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/server_ports.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "common/system/file_descriptor.h"

namespace millrace::comm {
namespace {

struct PortRange {
  int first;
  int last;
};

// "9100-9200", "9100".
Result<PortRange> parse_range(std::string_view text) {
  PortRange range{};
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, range.last);
  }
  if (read.ec != std::errc() || read.ptr != end || range.first < 1 || range.last > 65535 ||
      range.last < range.first) {
    return error(Errc::kInvalidArgument, "UCX_TCP_PORT_RANGE={} is not FIRST-LAST", text);
  }
  return range;
}

bool is_free(const SocketAddress& address) {
  const FileDescriptor socket(::socket(address.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  constexpr int kYes = 1;
  return ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &kYes, sizeof(kYes)) == 0 &&
         ::bind(socket.get(), address.data(), address.size()) == 0;
}

}  // namespace

std::string join_ports(std::string first, std::span<const int> others) {
  for (const int port : others) first += fmt::format(",{}", port);
  return first;
}

Result<std::vector<std::string>> split_ports(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return error(Errc::kInvalidArgument, "address \"{}\" is not host:port or host:port,port",
                 address);
  }
  const std::string host = address.substr(0, colon + 1);
  std::vector<std::string> ports;
  for (size_t begin = colon + 1; begin <= address.size();) {
    const size_t end = std::min(address.find(',', begin), address.size());
    ports.push_back(host + address.substr(begin, end - begin));
    begin = end + 1;
  }
  return ports;
}

Result<std::vector<SocketAddress>> further_addresses(const SocketAddress& address) {
  const char* const range = std::getenv("UCX_TCP_PORT_RANGE");
  if (range == nullptr || std::string_view(range) == "0") return std::vector{address.with_port(0)};
  MR_ASSIGN_OR_RETURN(const PortRange ports, parse_range(range));
  const int num_ports = ports.last - ports.first + 1;
  std::vector<SocketAddress> free;
  for (int i = 0; i < num_ports; ++i) {
    const auto candidate = address.with_port(ports.first + (::getpid() + i) % num_ports);
    if (is_free(candidate)) free.push_back(candidate);
  }
  if (free.empty()) {
    return error(Errc::kExhausted, "UCX_TCP_PORT_RANGE={}: no port is free", range);
  }
  return free;
}

}  // namespace millrace::comm
