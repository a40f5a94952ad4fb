#include "worker/watch_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace millrace::worker {

namespace {

// A stranger that connects and says nothing must not keep the ranks out.
constexpr std::chrono::seconds kHelloTimeout{2};

Error system_error(const std::string& what) {
  return error(Errc::kIo, "{}: {}", what, std::generic_category().message(errno));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> resolve(const char* host, const char* port) {
  const addrinfo hints{.ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host, port, &hints, &found); status != 0) {
    return error(Errc::kInvalidArgument, "host '{}': {}", host, gai_strerror(status));
  }
  return Addresses(found, &freeaddrinfo);
}

WatchSocket make_socket(const addrinfo& address) {
  return WatchSocket(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// For a host that vanishes without closing anything: noticed after 2 + 3 s.
void probe_when_idle(const WatchSocket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.fd(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Heartbeats that are not acknowledged take the place of an idle connection's probes.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
}

// A rank says who it is: the epoch, then its number.
std::string hello(const std::string& epoch, int rank) {
  return epoch + std::string(reinterpret_cast<const char*>(&rank), sizeof(rank));
}

// The rank that greets on a fresh connection, or -1.
int greeted_by(const WatchSocket& socket, int num_ranks, const std::string& epoch) {
  std::string received = hello(epoch, 0);
  const timeval patience{.tv_sec = kHelloTimeout.count()};
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (recv(socket.fd(), received.data(), received.size(), MSG_WAITALL) !=
          static_cast<ssize_t>(received.size()) ||
      !received.starts_with(epoch)) {
    return -1;
  }
  int rank = 0;
  std::memcpy(&rank, received.data() + epoch.size(), sizeof(rank));
  return rank > 0 && rank < num_ranks ? rank : -1;
}

int milliseconds_left(Deadline deadline) {
  return static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count());
}

}  // namespace

WatchSocket::~WatchSocket() {
  if (fd_ >= 0) close(fd_);
}

Result<WatchSocket> listen_for_ranks(const std::string& host, WatchEndpoint& endpoint) {
  MR_ASSIGN_OR_RETURN(const auto addresses, resolve(host.c_str(), "0"));
  WatchSocket listener = make_socket(*addresses);
  if (!listener.is_open() || bind(listener.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return system_error(fmt::format("watching the group on '{}'", host));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* address = reinterpret_cast<sockaddr*>(&bound);
  if (host.size() >= endpoint.host.size() || getsockname(listener.fd(), address, &size) != 0 ||
      getnameinfo(address, size, nullptr, 0, endpoint.port.data(), endpoint.port.size(),
                  NI_NUMERICSERV) != 0) {
    return error(Errc::kInvalidArgument, "watching the group on '{}'", host);
  }
  std::copy(host.begin(), host.end(), endpoint.host.begin());
  return listener;
}

Result<WatchSocket> connect_to_rank_0(const WatchEndpoint& endpoint, const std::string& epoch,
                                      int rank) {
  MR_ASSIGN_OR_RETURN(const auto addresses, resolve(endpoint.host.data(), endpoint.port.data()));
  WatchSocket connection = make_socket(*addresses);
  const std::string greeting = hello(epoch, rank);
  if (!connection.is_open() ||
      connect(connection.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      send(connection.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(greeting.size())) {
    return system_error(fmt::format("rank 0 at {}:{}", endpoint.host.data(), endpoint.port.data()));
  }
  probe_when_idle(connection);
  return connection;
}

Result<GreetedRank> accept_rank(const WatchSocket& listener, int num_ranks,
                                const std::string& epoch, Deadline deadline) {
  while (true) {
    pollfd waiting{.fd = listener.fd(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, milliseconds_left(deadline)) <= 0) {
      return error(Errc::kDeadlineExceeded, "not all of {} ranks reached rank 0's watch",
                   num_ranks);
    }
    WatchSocket connection(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.is_open()) continue;
    const int rank = greeted_by(connection, num_ranks, epoch);
    if (rank < 0) continue;
    probe_when_idle(connection);
    return GreetedRank{.rank = rank, .socket = std::move(connection)};
  }
}

}  // namespace millrace::worker
