// SPDX-License-Identifier: Apache-2.0
#include "worker/sync/watch_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "common/host_port.h"

namespace millrace::worker {

namespace {

// Connections that have not said who they are. One more ends the one that came first, so strangers
// that say nothing keep no rank out, which says so at once.
constexpr size_t kMaxStrangers = 128;
// Pause before the next accept() after a failed one.
constexpr std::chrono::milliseconds kAcceptPause{10};

Error system_error(const std::string& what) {
  return error(Errc::kIo, "{}: {}", what, std::generic_category().message(errno));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> resolve(const char* host, const char* port, int flags) {
  const addrinfo hints{.ai_flags = flags, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host, port, &hints, &found); status != 0) {
    return error(Errc::kInvalidArgument, "host '{}': {}", host, gai_strerror(status));
  }
  return Addresses(found, &freeaddrinfo);
}

// Calls on the socket do not block; only poll() waits, with a deadline.
WatchSocket make_socket(const addrinfo& address) {
  return WatchSocket(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Detects a host that vanishes without closing anything, after 2 + 3 s.
void keep_alive_when_idle(const WatchSocket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.fd(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Unacknowledged heartbeats take the place of keep-alives.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
}

// A rank introduces itself by the epoch, then its number.
std::string hello(const std::string& epoch, int rank) {
  return epoch + std::string(reinterpret_cast<const char*>(&rank), sizeof(rank));
}

// Whether `event` occurred before the deadline.
bool poll_until(const WatchSocket& socket, short event, Deadline deadline) {
  pollfd waiting{.fd = socket.fd(), .events = event, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    if (poll(&waiting, 1, static_cast<int>(left.count())) > 0) return true;
    if (deadline.passed()) return false;
  }
}

// Reads more of a greeting. Nothing more to come for now; complete; or the connection is over.
enum class Greeting { kIncomplete, kComplete, kOver };

Greeting read_greeting(const WatchSocket& socket, std::string& received, size_t num_bytes) {
  std::array<char, 256> room{};
  while (received.size() < num_bytes) {
    const ssize_t count = recv(socket.fd(), room.data(),
                               std::min(room.size(), num_bytes - received.size()), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Greeting::kIncomplete;
    if (count <= 0) return Greeting::kOver;
    received.append(room.data(), static_cast<size_t>(count));
  }
  return Greeting::kComplete;
}

// The rank that says so, or -1 if it is none of this group.
int rank_in(const std::string& greeting, int num_ranks, const std::string& epoch) {
  if (!greeting.starts_with(epoch)) return -1;
  int rank = 0;
  std::memcpy(&rank, greeting.data() + epoch.size(), sizeof(rank));
  return rank > 0 && rank < num_ranks ? rank : -1;
}

Result<void> connect_until(const WatchSocket& socket, const addrinfo& address, Deadline deadline) {
  int status = connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (status == EINPROGRESS) {
    if (!poll_until(socket, POLLOUT, deadline)) {
      return Error(Errc::kDeadlineExceeded, "no answer");
    }
    socklen_t size = sizeof(status);
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &status, &size) != 0) status = errno;
  }
  if (status != 0) return Error(Errc::kIo, std::generic_category().message(status));
  return {};
}

}  // namespace

WatchSocket::~WatchSocket() {
  if (fd_ >= 0) close(fd_);
}

Result<WatchSocket> listen_for_ranks(const std::string& written_host, WatchEndpoint& endpoint) {
  const std::string host = without_brackets(written_host);
  MR_ASSIGN_OR_RETURN(const auto addresses, resolve(host.c_str(), "0", /*flags=*/0));
  WatchSocket listener = make_socket(*addresses);
  if (!listener.is_open() || bind(listener.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return system_error(fmt::format("group watch: cannot listen on '{}'", host));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* address = reinterpret_cast<sockaddr*>(&bound);
  if (getsockname(listener.fd(), address, &size) != 0) {
    return system_error(fmt::format("group watch: port on '{}'", host));
  }
  const int status =
      getnameinfo(address, size, endpoint.host.data(), endpoint.host.size(), endpoint.port.data(),
                  endpoint.port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (status != 0) {
    return error(Errc::kInvalidArgument, "group watch: address '{}': {}", host,
                 gai_strerror(status));
  }
  return listener;
}

Result<WatchSocket> connect_to_rank_0(const WatchEndpoint& endpoint, const std::string& epoch,
                                      int rank, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto addresses, resolve(endpoint.host.data(), endpoint.port.data(),
                                                    AI_NUMERICHOST | AI_NUMERICSERV));
  WatchSocket connection = make_socket(*addresses);
  const HostPort named{.host = endpoint.host.data(),
                       .port = static_cast<uint16_t>(std::atoi(endpoint.port.data()))};
  const auto where = "rank 0 at " + named.to_string();
  if (!connection.is_open()) return system_error(where);
  if (const auto connected = connect_until(connection, *addresses, deadline); !connected.ok()) {
    return error(connected.error().code, "{}: {}", where, connected.error().message);
  }
  const std::string greeting = hello(epoch, rank);
  if (send(connection.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(greeting.size())) {
    return system_error(where);
  }
  keep_alive_when_idle(connection);
  return connection;
}

Result<GreetedRank> RankArrivals::next(Deadline deadline) {
  do {
    for (auto at = strangers_.begin(); at != strangers_.end();) {
      const auto greeting = read_greeting(at->socket, at->received, hello(epoch_, 0).size());
      if (greeting == Greeting::kIncomplete) {
        ++at;
        continue;
      }
      const int rank =
          greeting == Greeting::kComplete ? rank_in(at->received, num_ranks_, epoch_) : -1;
      WatchSocket socket = std::move(at->socket);
      at = strangers_.erase(at);
      if (rank < 0) continue;
      keep_alive_when_idle(socket);
      return GreetedRank{.rank = rank, .socket = std::move(socket)};
    }
  } while (wait(deadline));
  return error(Errc::kDeadlineExceeded, "not all of {} ranks connected to rank 0's watch",
               num_ranks_);
}

bool RankArrivals::wait(Deadline deadline) {
  std::vector<pollfd> watched{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
  for (const auto& stranger : strangers_) {
    watched.push_back({.fd = stranger.socket.fd(), .events = POLLIN, .revents = 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
  poll(watched.data(), watched.size(), static_cast<int>(left.count()));
  if (deadline.passed()) return false;
  if (watched.front().revents == 0) return true;
  WatchSocket connection(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.is_open()) {
    // The peer is gone again, or no descriptor is free; then poll() would return at once.
    std::this_thread::sleep_for(std::min<Duration>(kAcceptPause, deadline.left()));
    return true;
  }
  strangers_.push_back({.socket = std::move(connection), .received = {}});
  if (strangers_.size() > kMaxStrangers) strangers_.pop_front();
  return true;
}

}  // namespace millrace::worker
