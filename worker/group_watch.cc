#include "worker/group_watch.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace millrace::worker {

namespace {

constexpr char kGoodbye = 'b';
// A stranger that connects and says nothing must not keep the ranks out.
constexpr std::chrono::seconds kHelloTimeout{2};

struct Endpoint {
  std::array<char, 256> host = {};
  std::array<char, 8> port = {};  // empty: rank 0 could not listen
};

struct Socket {
  int fd = -1;
  Socket() = default;
  explicit Socket(int number) : fd(number) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

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

void probe_when_idle(int socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Result<int> listen_on(const std::string& host, Endpoint& endpoint) {
  MR_ASSIGN_OR_RETURN(const auto addresses, resolve(host.c_str(), "0"));
  Socket listener(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.fd < 0 || bind(listener.fd, addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.fd, SOMAXCONN) != 0) {
    return system_error(fmt::format("watching the group on '{}'", host));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* address = reinterpret_cast<sockaddr*>(&bound);
  if (host.size() >= endpoint.host.size() || getsockname(listener.fd, address, &size) != 0 ||
      getnameinfo(address, size, nullptr, 0, endpoint.port.data(), endpoint.port.size(),
                  NI_NUMERICSERV) != 0) {
    return error(Errc::kInvalidArgument, "watching the group on '{}'", host);
  }
  std::copy(host.begin(), host.end(), endpoint.host.begin());
  return listener.release();
}

// A rank says who it is: the epoch, then its number.
std::string hello(const std::string& epoch, int rank) {
  return epoch + std::string(reinterpret_cast<const char*>(&rank), sizeof(rank));
}

Result<int> connect_to(const Endpoint& endpoint, const std::string& greeting) {
  MR_ASSIGN_OR_RETURN(const auto addresses, resolve(endpoint.host.data(), endpoint.port.data()));
  Socket connection(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connection.fd < 0 || connect(connection.fd, addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      send(connection.fd, greeting.data(), greeting.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(greeting.size())) {
    return system_error(fmt::format("rank 0 at {}:{}", endpoint.host.data(), endpoint.port.data()));
  }
  probe_when_idle(connection.fd);
  return connection.release();
}

int milliseconds_left(Deadline deadline) {
  return static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count());
}

// The rank that greets on a fresh connection, or -1.
int greeted_by(int socket, int num_ranks, const std::string& epoch) {
  std::string received = hello(epoch, 0);
  const timeval patience{.tv_sec = kHelloTimeout.count()};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (recv(socket, received.data(), received.size(), MSG_WAITALL) !=
          static_cast<ssize_t>(received.size()) ||
      !received.starts_with(epoch)) {
    return -1;
  }
  int rank = 0;
  std::memcpy(&rank, received.data() + epoch.size(), sizeof(rank));
  return rank > 0 && rank < num_ranks ? rank : -1;
}

}  // namespace

Result<std::unique_ptr<GroupWatch>> GroupWatch::start(comm::Communicator& world,
                                                      const std::string& host,
                                                      const std::string& epoch, OnLost on_lost,
                                                      Deadline deadline) {
  std::unique_ptr<GroupWatch> group_watch(new GroupWatch(std::move(on_lost)));
  Endpoint endpoint;
  Socket listener;
  Result<void> listening;
  if (world.rank() == 0) {
    auto listens = listen_on(host, endpoint);
    if (listens.ok()) listener.fd = *listens;
    if (!listens.ok()) listening = listens.error();
  }
  MR_RETURN_IF_ERROR(
      world.broadcast(std::as_writable_bytes(std::span(&endpoint, 1)), /*root=*/0, deadline));
  MR_RETURN_IF_ERROR(listening);
  if (endpoint.port[0] == 0) return error(Errc::kPeerLost, "rank 0 cannot watch the group");
  if (world.rank() == 0) {
    MR_RETURN_IF_ERROR(group_watch->accept_ranks(listener.fd, world.size(), epoch, deadline));
  } else {
    MR_ASSIGN_OR_RETURN(const int socket, connect_to(endpoint, hello(epoch, world.rank())));
    group_watch->peers_.push_back({.rank = 0, .socket = socket});
  }
  MR_RETURN_IF_ERROR(group_watch->run());
  return group_watch;
}

Result<void> GroupWatch::accept_ranks(int listener, int num_ranks, const std::string& epoch,
                                      Deadline deadline) {
  while (static_cast<int>(peers_.size()) < num_ranks - 1) {
    pollfd waiting{.fd = listener, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, milliseconds_left(deadline)) <= 0) {
      return error(Errc::kDeadlineExceeded, "{} of {} ranks reached rank 0's watch",
                   peers_.size() + 1, num_ranks);
    }
    Socket connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.fd < 0) continue;
    const int rank = greeted_by(connection.fd, num_ranks, epoch);
    if (rank < 0) continue;
    probe_when_idle(connection.fd);
    peers_.push_back({.rank = rank, .socket = connection.release()});
  }
  return {};
}

Result<void> GroupWatch::run() {
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) return system_error("eventfd");
  thread_ = std::jthread([this] { watch(); });
  return {};
}

void GroupWatch::watch() {
  std::vector<pollfd> polled;
  for (const auto& peer : peers_) polled.push_back({.fd = peer.socket, .events = POLLIN});
  polled.push_back({.fd = wake_, .events = POLLIN});
  while (true) {
    // Without a deadline on purpose: it ends by wake_.
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled.back().revents != 0) return;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (polled[i].revents == 0) continue;
      char said = 0;
      if (recv(polled[i].fd, &said, 1, 0) != 1 || said != kGoodbye) return on_lost_(peers_[i].rank);
      polled[i].fd = -1;  // poll passes over it
    }
  }
}

void GroupWatch::leave() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
  for (const auto& peer : peers_) send(peer.socket, &kGoodbye, 1, MSG_NOSIGNAL);
}

GroupWatch::~GroupWatch() {
  if (thread_.joinable()) {
    eventfd_write(wake_, 1);
    thread_.join();
  }
  for (const auto& peer : peers_) close(peer.socket);
  if (wake_ >= 0) close(wake_);
}

}  // namespace millrace::worker
