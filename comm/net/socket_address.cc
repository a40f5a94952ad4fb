// SPDX-License-Identifier: Apache-2.0
#include "comm/net/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <cstring>
#include <memory>

#include "common/host_port.h"

namespace millrace::comm {

Result<SocketAddress> SocketAddress::parse(const std::string& text) {
  MR_ASSIGN_OR_RETURN(const HostPort where, HostPort::parse(text));
  return resolve(where.host, where.port);
}

Result<SocketAddress> SocketAddress::resolve(const std::string& written_host, int port) {
  const std::string host = without_brackets(written_host);
  if (port < 0 || port > 65535) {
    return error(Errc::kInvalidArgument,
                 "port {} of host \"{}\" is out of range; expected 0 to 65535", port, host);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  if (host.empty()) hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    return error(Errc::kInvalidArgument, "host \"{}\": {}", host, gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  return SocketAddress(storage);
}

Result<SocketAddress> SocketAddress::of_socket(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return Error(Errc::kIo, "getsockname");
  }
  return SocketAddress(storage);
}

int SocketAddress::port() const {
  // The port is at the same place in both address types.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

bool SocketAddress::is_loopback() const {
  constexpr uint32_t kNetwork = 127;  // 127.0.0.0/8
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
  if (storage_.ss_family == AF_INET) return ntohl(v4->sin_addr.s_addr) >> 24 == kNetwork;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return v6->sin6_addr.s6_addr[12] == kNetwork;
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

SocketAddress SocketAddress::with_port(int port) const {
  SocketAddress address = *this;
  reinterpret_cast<sockaddr_in*>(&address.storage_)->sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

socklen_t SocketAddress::size() const {
  return storage_.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::string SocketAddress::to_string() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (storage_.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    return fmt::format("[{}]:{}", host, ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
  inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
  return fmt::format("{}:{}", host, ntohs(v4->sin_port));
}

}  // namespace millrace::comm
