// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace millrace::comm {

namespace {

void set(int socket, int level, int name, int value) {
  // Each option is of use without the others.
  (void)::setsockopt(socket, level, name, &value, sizeof(value));
}

}  // namespace

void TcpStream::tune(int silence_s) const {
  const int fd = socket_.get();
  const int probe_s = std::max(1, silence_s / 4);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // For data sent and not acknowledged, during which no probes are sent.
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, silence_s * 1000);
}

Result<void> TcpStream::accept_tls(const TlsContext& context) {
  MR_ASSIGN_OR_RETURN(tls_, TlsSocket::server(context, socket_.get()));
  return {};
}

Result<void> TcpStream::connect_tls(const TlsContext& context, const std::string& host) {
  MR_ASSIGN_OR_RETURN(tls_, TlsSocket::client(context, socket_.get(), host));
  return {};
}

TcpStream::Io TcpStream::read(std::span<iovec> pieces) {
  if (tls_) {
    return tls_->read({static_cast<std::byte*>(pieces.front().iov_base), pieces.front().iov_len});
  }
  return outcome(::readv(socket_.get(), pieces.data(), static_cast<int>(pieces.size())),
                 State::kWantsRead);
}

TcpStream::Io TcpStream::read(std::span<std::byte> into) {
  iovec piece{.iov_base = into.data(), .iov_len = into.size()};
  return read(std::span(&piece, 1));
}

TcpStream::Io TcpStream::write(std::span<iovec> pieces) {
  if (tls_) {
    return tls_->write(
        {static_cast<const std::byte*>(pieces.front().iov_base), pieces.front().iov_len});
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return outcome(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL), State::kWantsWrite);
}

TcpStream::Io TcpStream::write(std::span<const std::byte> bytes) {
  iovec piece{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  return write(std::span(&piece, 1));
}

TcpStream::Io TcpStream::outcome(ssize_t result, State wanted) {
  if (result > 0) return {.state = State::kDone, .bytes = static_cast<size_t>(result)};
  if (result == 0) return {.state = State::kEnded};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {.state = wanted};
  reason_ = std::generic_category().message(errno);
  return {.state = State::kFailed};
}

}  // namespace millrace::comm
