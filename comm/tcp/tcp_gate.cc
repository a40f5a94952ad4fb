// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_gate.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "common/errc_wire.h"
#include "common/log.h"

namespace millrace::comm {

namespace {

using State = TcpStream::State;

constexpr uint64_t kListenerId = 1;
constexpr uint64_t kFirstStrangerId = 2;
constexpr int kBacklog = 1024;
// How many connections are accepted before those that have come already are served.
constexpr int kAcceptsAtOnce = 64;
constexpr std::chrono::milliseconds kPauseWithoutResources{100};

}  // namespace

Result<FileDescriptor> TcpGate::listen_at(const SocketAddress& address) {
  FileDescriptor socket(
      ::socket(address.data()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket.valid() ||
      // A restarted server can take its port although connections of its former life linger.
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.get(), address.data(), address.size()) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return error(Errc::kIo, "listening on {}: {}", address.to_string(),
                 std::generic_category().message(errno));
  }
  return socket;
}

Result<std::unique_ptr<TcpGate>> TcpGate::create(Context context, FileDescriptor listener) {
  MR_ASSIGN_OR_RETURN(auto epoll, Epoll::create());
  std::unique_ptr<TcpGate> gate(
      new TcpGate(std::move(context), std::move(listener), std::move(epoll)));
  gate->next_id_ = kFirstStrangerId;
  MR_RETURN_IF_ERROR(gate->epoll_.add(gate->listener_.get(), kListenerId, EPOLLIN));
  return gate;
}

TcpGate::~TcpGate() {
  stopping_.store(true);
  epoll_.wake();
  if (thread_.joinable()) thread_.join();
}

void TcpGate::start() {
  thread_ = std::thread([this] { run(); });
}

TcpGate::Origin TcpGate::origin_of(const sockaddr_storage& address) {
  Origin origin{};
  if (address.ss_family == AF_INET) {
    origin[0] = 4;
    std::memcpy(origin.data() + 1, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  } else if (address.ss_family == AF_INET6) {
    origin[0] = 6;
    std::memcpy(origin.data() + 1, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 8);
  }
  return origin;
}

void TcpGate::run() {
  std::array<epoll_event, 64> room{};
  while (!stopping_.load()) {
    for (const auto& event : epoll_.wait(room, patience_ms())) {
      if (event.data.u64 >= kFirstStrangerId) serve(event.data.u64);
      if (event.data.u64 == kListenerId) accept_some();
    }
    drop_late();
  }
}

int TcpGate::patience_ms() const {
  const auto now = Clock::steady().now();
  auto until = TimePoint::max();
  if (!strangers_.empty()) until = strangers_.begin()->second.until;
  if (accepts_from_ > now) until = std::min(until, accepts_from_);
  if (until == TimePoint::max()) return -1;
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(std::max(until - now, Duration::zero()))
          .count());
}

void TcpGate::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    FileDescriptor socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                                    SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      const bool poor = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (!poor) return;  // nobody is waiting, or the client has gone
      say_unaccepted(std::generic_category().message(errno));
      accepts_from_ = Clock::steady().now() + kPauseWithoutResources;
      (void)epoll_.change(listener_.get(), kListenerId, 0);
      return;
    }
    try {
      add(std::move(socket), origin_of(from));
    } catch (const std::exception& why) {
      say_unaccepted(why.what());
    }
  }
}

void TcpGate::say_unaccepted(const std::string& why) {
  if (const auto times = unaccepted_line_.due()) {
    log::warn("KV server {}: a client cannot be accepted: {}{}", context_.name, why,
              PacedLine::others(*times));
  }
}

void TcpGate::add(FileDescriptor socket, const Origin& origin) {
  const auto known = of_origin_.find(origin);
  if (known != of_origin_.end() && known->second >= context_.limits.max_strangers_of_address) {
    make_room(&origin);
  }
  if (std::ssize(strangers_) >= context_.limits.max_strangers) make_room(nullptr);
  TcpStream stream(std::move(socket));
  stream.tune(context_.limits.silence_s);
  if (context_.tls) {
    const auto context = context_.tls->context();
    if (!context.ok() || !stream.accept_tls(*context).ok()) return;
  }
  const bool secured = !stream.encrypted();
  const uint64_t id = next_id_++;
  const auto entry =
      strangers_
          .emplace(id, Stranger{.stream = std::move(stream),
                                .origin = origin,
                                .until = Clock::steady().now() + context_.limits.hello,
                                .secured = secured})
          .first;
  ++of_origin_[origin];
  if (!epoll_.add(entry->second.stream.descriptor(), id, entry->second.watched).ok()) {
    entry->second.why = "it cannot be watched";
    drop(entry);
  }
}

void TcpGate::make_room(const Origin* origin) {
  const auto first = std::ranges::find_if(strangers_, [&](const auto& entry) {
    return origin == nullptr || entry.second.origin == *origin;
  });
  if (first == strangers_.end()) return;
  const uint64_t id = first->first;
  serve(id);  // its hello may have arrived meanwhile
  const auto still = strangers_.find(id);
  if (still == strangers_.end()) return;
  still->second.why = "too many say no hello";
  drop(still);
}

void TcpGate::serve(uint64_t id) noexcept {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  auto verdict = Verdict::kGoes;
  try {
    verdict = step(id, found->second);
  } catch (const std::exception&) {
    found->second.why = "its hello cannot be dealt with";
  }
  if (verdict == Verdict::kStays) return;
  if (verdict == Verdict::kGoes) return drop(found);
  epoll_.remove(found->second.stream.descriptor());
  TcpStream stream = std::move(found->second.stream);
  auto admitted = std::move(found->second.admitted);
  if (--of_origin_[found->second.origin] == 0) of_origin_.erase(found->second.origin);
  strangers_.erase(found);
  try {
    context_.take(std::move(stream), std::move(admitted));
  } catch (const std::exception&) {
    ++context_.counts.failures;
  }
}

TcpGate::Verdict TcpGate::step(uint64_t id, Stranger& stranger) {
  if (!stranger.secured) {
    const auto io = stranger.stream.handshake();
    if (io.state == State::kWantsRead) return wait_for(id, stranger, EPOLLIN);
    if (io.state == State::kWantsWrite) return wait_for(id, stranger, EPOLLOUT);
    if (io.state != State::kDone) {
      stranger.why = "no TLS handshake with it";
      return Verdict::kGoes;
    }
    stranger.secured = true;
  }
  while (stranger.filled < kClientHelloBytes) {
    const auto io = stranger.stream.read(std::span(stranger.hello).subspan(stranger.filled));
    if (io.state == State::kWantsRead) return wait_for(id, stranger, EPOLLIN);
    if (io.state == State::kWantsWrite) return wait_for(id, stranger, EPOLLOUT);
    if (io.state != State::kDone) return Verdict::kGoes;
    stranger.filled += io.bytes;
    const auto come = std::span<const std::byte>(stranger.hello).first(stranger.filled);
    if (!may_be_client_hello(come)) return Verdict::kGoes;
    if (come.size() >= kHelloPrefixBytes && version_of_hello(come) != kTcpWireVersion) {
      stranger.why = "it speaks another version";
      (void)answer(stranger, errc_to_wire(Errc::kUnsupported));
      return Verdict::kGoes;
    }
  }
  return judge(stranger);
}

TcpGate::Verdict TcpGate::judge(Stranger& stranger) {
  const auto capability = read_client_hello(stranger.hello);
  if (!capability) return Verdict::kGoes;
  if (context_.admits && !context_.admits(*capability)) {
    stranger.why = "it showed no lease that is known";
    (void)answer(stranger, errc_to_wire(Errc::kNotFound));
    return Verdict::kGoes;
  }
  auto admitted = context_.quota.take(*capability);
  if (!admitted.ok()) {
    stranger.why = "there are as many clients, in all or of its lease, as there may be";
    (void)answer(stranger, errc_to_wire(Errc::kExhausted));
    return Verdict::kGoes;
  }
  if (!answer(stranger, 0)) return Verdict::kGoes;
  stranger.admitted = *std::move(admitted);
  return Verdict::kIsAdmitted;
}

TcpGate::Verdict TcpGate::wait_for(uint64_t id, Stranger& stranger, uint32_t events) {
  // With EPOLLRDHUP a departing peer is noticed although nothing is to be read.
  const uint32_t wanted = events | EPOLLRDHUP;
  if (stranger.watched == wanted) return Verdict::kStays;
  stranger.watched = wanted;
  return epoll_.change(stranger.stream.descriptor(), id, wanted).ok() ? Verdict::kStays
                                                                      : Verdict::kGoes;
}

// Fits the system's send buffer of a connection on which nothing has been sent yet.
bool TcpGate::answer(Stranger& stranger, int32_t errc) const {
  const auto hello = write_server_hello({.errc = errc});
  const auto io = stranger.stream.write(std::span<const std::byte>(hello));
  return io.state == State::kDone && io.bytes == hello.size();
}

void TcpGate::drop(Strangers::iterator stranger) {
  ++context_.counts.refused;
  if (const auto times = refused_line_.due()) {
    log::info("KV server {}: {} connections not let in; the last one: {}", context_.name, *times,
              stranger->second.why);
  }
  // Unread data from the client would make the system discard an answer that is on its way.
  std::array<std::byte, 512> rest{};
  (void)::recv(stranger->second.stream.descriptor(), rest.data(), rest.size(), MSG_DONTWAIT);
  if (--of_origin_[stranger->second.origin] == 0) of_origin_.erase(stranger->second.origin);
  strangers_.erase(stranger);
}

void TcpGate::drop_late() {
  const auto now = Clock::steady().now();
  while (!strangers_.empty() && strangers_.begin()->second.until <= now) {
    strangers_.begin()->second.why = "it took too long to say hello";
    drop(strangers_.begin());
  }
  if (accepts_from_ != TimePoint() && accepts_from_ <= now) {
    accepts_from_ = {};
    (void)epoll_.change(listener_.get(), kListenerId, EPOLLIN);
  }
}

}  // namespace millrace::comm
