// SPDX-License-Identifier: Apache-2.0
#include "comm/memfd/memfd_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "comm/memfd/packet_socket.h"
#include "common/log.h"
#include "common/secret.h"

namespace millrace::comm {

namespace {

constexpr uint64_t kListenerId = 0;
constexpr uint64_t kStopId = 1;
constexpr uint64_t kFirstClientId = 2;
// How late a slow client is found at most.
constexpr std::chrono::milliseconds kSweepPeriod{1000};

}  // namespace

Result<std::unique_ptr<MemfdServer>> MemfdServer::start(std::vector<int> descriptors,
                                                        Handler handler,
                                                        const MemfdServerOptions& options) {
  const std::string name = "millrace-" + random_id();
  MR_ASSIGN_OR_RETURN(auto listener, PacketSocket::listen(name));
  FileDescriptor events(::epoll_create1(EPOLL_CLOEXEC));
  FileDescriptor stopped(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!events.valid() || !stopped.valid()) return Error(Errc::kIo, "epoll or eventfd");
  std::unique_ptr<MemfdServer> server(new MemfdServer(name, std::move(listener), std::move(events),
                                                      std::move(stopped), std::move(descriptors),
                                                      std::move(handler), options));
  MR_RETURN_IF_ERROR(server->watch(server->stopped_.get(), kStopId, EPOLLIN, EPOLL_CTL_ADD));
  MR_RETURN_IF_ERROR(server->watch(server->listener_.descriptor(), kListenerId,
                                   EPOLLIN | EPOLLONESHOT, EPOLL_CTL_ADD));
  for (int i = 0; i < options.num_threads; ++i) {
    server->threads_.emplace_back([self = server.get()] { self->run(); });
  }
  return server;
}

MemfdServer::MemfdServer(std::string name, PacketSocket listener, FileDescriptor events,
                         FileDescriptor stopped, std::vector<int> descriptors, Handler handler,
                         const MemfdServerOptions& options)
    : name_(std::move(name)),
      listener_(std::move(listener)),
      events_(std::move(events)),
      stopped_(std::move(stopped)),
      descriptors_(std::move(descriptors)),
      handler_(std::move(handler)),
      options_(options),
      next_id_(kFirstClientId) {}

MemfdServer::~MemfdServer() {
  stopping_.store(true);
  ::eventfd_write(stopped_.get(), 1);
  for (auto& thread : threads_) thread.join();
}

// Each event of a socket goes to one thread, which asks for the next event when it has handled this
// one.
Result<void> MemfdServer::watch(int descriptor, uint64_t id, uint32_t events, int operation) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(events_.get(), operation, descriptor, &event) == 0) return {};
  return error(Errc::kIo, "epoll_ctl: errno {}", errno);
}

void MemfdServer::run() {
  while (!stopping_.load()) {
    epoll_event event{};
    const int count = ::epoll_wait(events_.get(), &event, 1, kSweepPeriod.count());
    drop_slow_clients();
    if (count <= 0 || event.data.u64 == kStopId) continue;
    if (event.data.u64 == kListenerId) {
      accept_clients();
    } else {
      serve(event.data.u64);
    }
  }
}

// If a client cannot be accepted because no descriptor is left, the next sweep tries again.
void MemfdServer::accept_clients() {
  while (true) {
    auto accepted = listener_.accept();
    if (!accepted.ok()) {
      say(accepted.error().message);
      return;
    }
    if (!*accepted) break;
    add(std::move(**accepted));
  }
  (void)watch(listener_.descriptor(), kListenerId, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
}

void MemfdServer::add(PacketSocket socket) {
  const auto user = socket.peer_user();
  if (!user.ok() || *user != ::geteuid()) {
    say(fmt::format("refusing a process of another user, {}",
                    user.ok() ? std::to_string(*user) : user.error().message));
    return;
  }
  auto client = std::make_shared<Client>(std::move(socket));
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (clients_.size() >= options_.max_clients && !make_room()) {
      say(fmt::format("refusing a client: {} are connected, the limit", options_.max_clients));
      return;
    }
    id = next_id_++;
    clients_.emplace(id, client);
  }
  const auto watched =
      watch(client->socket.descriptor(), id, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_ADD);
  if (!watched.ok()) drop(id);
}

void MemfdServer::serve(uint64_t id) {
  std::shared_ptr<Client> client;
  {
    const std::lock_guard lock(mutex_);
    const auto known = clients_.find(id);
    if (known == clients_.end()) return;
    client = known->second;
  }
  Result<void> served;
  try {
    served = receive(*client);
  } catch (const std::exception& why) {  // costs this client its connection
    served = Error(Errc::kInternal, why.what());
  }
  if (served.ok()) {
    served = watch(client->socket.descriptor(), id, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
  }
  if (served.ok()) return;
  if (served.error().code != Errc::kPeerLost) {
    say("dropping a client: " + served.error().message);
  }
  drop(id);
}

Result<void> MemfdServer::receive(Client& client) {
  MR_ASSIGN_OR_RETURN(const auto packet, client.socket.receive());
  if (!packet) return {};
  const std::string_view text = packet->text;
  if (text == kMemfdDone) {
    hold(client, nullptr);
    return {};
  }
  if (text.starts_with(kMemfdAsk)) return answer(client, text.substr(1));
  return error(Errc::kInvalidArgument, "a message of {} bytes of an unknown kind", text.size());
}

Result<void> MemfdServer::answer(Client& client, std::string_view request) {
  hold(client, nullptr);
  Answer answer = handler_(request);
  const size_t given = client.num_descriptors;
  const size_t wanted = std::max(given, std::min(answer.num_descriptors, descriptors_.size()));
  if (!hold(client, std::move(answer.keep_alive))) {
    return Error(Errc::kPeerLost, "dropped meanwhile");
  }
  MR_RETURN_IF_ERROR(
      client.socket.send(answer.text, std::span(descriptors_).subspan(given, wanted - given)));
  client.num_descriptors = wanted;
  return {};
}

bool MemfdServer::hold(Client& client, std::shared_ptr<void> held) {
  const std::lock_guard lock(mutex_);
  if (client.dropped) return false;
  client.held_since = Clock::steady().now();
  std::swap(client.held, held);
  return true;
}

void MemfdServer::drop(uint64_t id) {
  std::shared_ptr<Client> client;
  std::shared_ptr<void> held;
  const std::lock_guard lock(mutex_);
  const auto known = clients_.find(id);
  if (known == clients_.end()) return;
  client = std::move(known->second);
  clients_.erase(known);
  client->dropped = true;
  client->socket.shut_down();  // before what it reads may change
  held = std::move(client->held);
}

void MemfdServer::say(const std::string& what) {
  if (const auto times = line_.due()) {
    log::warn("same-host pulls: {}{}", what, PacedLine::others(*times));
  }
}

bool MemfdServer::make_room() {
  const auto idle =
      std::ranges::find_if(clients_, [](const auto& entry) { return !entry.second->held; });
  if (idle == clients_.end()) return false;
  idle->second->dropped = true;
  idle->second->socket.shut_down();
  clients_.erase(idle);
  return true;
}

void MemfdServer::drop_slow_clients() {
  std::vector<uint64_t> slow;
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::steady().now();
    if (now < next_sweep_) return;
    next_sweep_ = now + kSweepPeriod;
    for (const auto& [id, client] : clients_) {
      if (client->held && now - client->held_since > options_.grace) slow.push_back(id);
    }
  }
  (void)watch(listener_.descriptor(), kListenerId, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
  for (const uint64_t id : slow) {
    say(fmt::format("a client holds pages for more than {:.0f} s; dropping it",
                    seconds(options_.grace)));
    drop(id);
  }
}

}  // namespace millrace::comm
