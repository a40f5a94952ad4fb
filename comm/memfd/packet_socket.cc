// SPDX-License-Identifier: Apache-2.0
#include "comm/memfd/packet_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <system_error>

namespace millrace::comm {

namespace {

// How many clients may connect at the same moment, before they are accepted.
constexpr int kBacklog = 1024;

struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);  // after a 0 byte: abstract
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size = 0;
};

Error socket_error(const char* what) {
  const int code = errno;
  const bool lost = code == ECONNREFUSED || code == EPIPE || code == ECONNRESET || code == ENOTCONN;
  const bool full = code == EAGAIN || code == ENOBUFS || code == ENOMEM;
  return error(lost   ? Errc::kPeerLost
               : full ? Errc::kExhausted
                      : Errc::kIo,
               "{}: {}", what, std::generic_category().message(code));
}

bool would_wait() {
  return errno == EAGAIN || errno == EINTR;
}

// Room for the descriptors of one message, aligned as the system requires.
struct alignas(cmsghdr) ControlBytes
    : std::array<std::byte, CMSG_SPACE(kMaxPacketDescriptors * sizeof(int))> {};

std::vector<FileDescriptor> descriptors_of(msghdr& message) {
  std::vector<FileDescriptor> all;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      all.emplace_back(fd);
    }
  }
  return all;
}

}  // namespace

Result<PacketSocket> PacketSocket::listen(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return socket_error("socket");
  const AbstractAddress address(name);
  if (::bind(socket.get(), address.data(), address.size) != 0) return socket_error("bind");
  if (::listen(socket.get(), kBacklog) != 0) return socket_error("listen");
  return PacketSocket(std::move(socket));
}

Result<PacketSocket> PacketSocket::connect(const std::string& name, Deadline deadline) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket_error("socket");
  const auto left = std::chrono::ceil<std::chrono::microseconds>(deadline.left());
  const timeval limit{.tv_sec = left.count() / 1'000'000,
                      .tv_usec = std::max<int64_t>(left.count() % 1'000'000, 1)};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const AbstractAddress address(name);
  if (::connect(socket.get(), address.data(), address.size) != 0) return socket_error("connect");
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) return socket_error("fcntl");
  return PacketSocket(std::move(socket));
}

Result<std::optional<PacketSocket>> PacketSocket::accept() const {
  FileDescriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) return std::optional(PacketSocket(std::move(socket)));
  if (would_wait() || errno == ECONNABORTED) return std::optional<PacketSocket>();
  return socket_error("accept");
}

Result<uid_t> PacketSocket::peer_user() const {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return socket_error("SO_PEERCRED");
  }
  return peer.uid;
}

Result<void> PacketSocket::send(std::string_view text, std::span<const int> descriptors) const {
  MR_CHECK(descriptors.size() <= kMaxPacketDescriptors, "{} descriptors", descriptors.size());
  iovec bytes{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  ControlBytes control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  }
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return socket_error("sendmsg");
  }
  return {};
}

Result<std::optional<PacketSocket::Packet>> PacketSocket::receive() const {
  thread_local std::vector<char> buffer(kMaxPacketBytes);
  iovec bytes{buffer.data(), buffer.size()};
  ControlBytes control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 && would_wait()) return std::optional<Packet>();
  if (count < 0) return socket_error("recvmsg");
  Packet packet{.text = {}, .descriptors = descriptors_of(message)};
  if (count == 0) return Error(Errc::kPeerLost, "the other end has closed");
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
    return error(Errc::kCorrupt, "a message of more than {} bytes or {} descriptors",
                 kMaxPacketBytes, kMaxPacketDescriptors);
  }
  packet.text.assign(buffer.data(), static_cast<size_t>(count));
  return std::optional(std::move(packet));
}

bool PacketSocket::wait(Deadline deadline) const {
  pollfd poll{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    const auto most = std::min<int64_t>(left.count(), 3'600'000);
    if (::poll(&poll, 1, static_cast<int>(most)) > 0) return true;
    if (deadline.passed()) return false;
  }
}

void PacketSocket::shut_down() const {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace millrace::comm
