#include "coordinator/server.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <set>

#include "common/log.h"
#include "coordinator/group_session.h"
#include "coordinator/http_session.h"

namespace millrace::coordinator {

namespace {

// Far more groups than one coordinator was ever meant for; keeps strangers from piling up.
constexpr int kMaxGroupConnections = 256;

Result<tcp::acceptor> listen(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);
  if (ec) return error(Errc::kInvalidArgument, "'{}' is not an IP address to listen on", host);
  const tcp::endpoint endpoint(address, port);
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return error(Errc::kIo, "listen on {}:{}: {}", host, port, ec.message());
  return acceptor;
}

// The live connections of one kind, so that they can be counted and closed.
template <typename Session>
using Sessions = std::set<std::shared_ptr<Session>>;

}  // namespace

struct Server::Impl {
  explicit Impl(const ServerOptions& server_options)
      : options(server_options),
        probes(registry),
        scheduler(options.scheduler, Clock::steady(), probes,
                  [this](const Request& request) { changes.changed(request.id); }) {
    registry.gauge("millrace_build_info", "Always 1", {{"version", MILLRACE_VERSION}}).set(1);
  }

  awaitable<void> accept_http();
  awaitable<void> serve_http(std::shared_ptr<HttpSession> session);
  awaitable<void> accept_groups();
  awaitable<void> serve_group(std::shared_ptr<GroupSession> session);
  awaitable<void> tick();
  awaitable<void> handle_signals();
  awaitable<void> drain();
  bool full(HttpSession::Kind kind) const;
  bool answering() const;
  void begin_shutdown();
  void close_all();

  const ServerOptions options;
  metrics::Registry registry;
  Probes probes;
  ChangeHub changes;
  Scheduler scheduler;
  asio::thread_pool parsers{1};
  asio::io_context io{1};
  BodyBudget bodies{options.http.body_pool_bytes};
  HttpShared shared{options, scheduler, changes, probes, bodies, parsers};
  tcp::acceptor http_acceptor{io};
  tcp::acceptor group_acceptor{io};
  asio::signal_set signals{io};
  Notifier ticking{io.get_executor()};
  Notifier http_ended{io.get_executor()};
  Sessions<HttpSession> http_sessions;
  Sessions<GroupSession> group_sessions;
  bool stopping = false;
  bool patient = true;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::create(const ServerOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  MR_ASSIGN_OR_RETURN(impl->http_acceptor, listen(impl->io, options.host, options.http_port));
  MR_ASSIGN_OR_RETURN(impl->group_acceptor, listen(impl->io, options.host, options.group_port));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::http_port() const {
  return impl_->http_acceptor.local_endpoint().port();
}
uint16_t Server::group_port() const {
  return impl_->group_acceptor.local_endpoint().port();
}

void Server::run(bool handle_signals) {
  Impl& self = *impl_;
  if (handle_signals) {
    self.signals.add(SIGTERM);
    self.signals.add(SIGINT);
    asio::co_spawn(self.io, self.handle_signals(), asio::detached);
  }
  asio::co_spawn(self.io, self.accept_http(), asio::detached);
  asio::co_spawn(self.io, self.accept_groups(), asio::detached);
  asio::co_spawn(self.io, self.tick(), asio::detached);
  self.io.run();
}

void Server::shut_down() {
  asio::post(impl_->io, [this] { impl_->begin_shutdown(); });
}

awaitable<void> Server::Impl::accept_http() {
  while (http_acceptor.is_open()) {
    // Who comes now waits in the listener's queue. Probes take milliseconds, or end by deadlines.
    if (full(HttpSession::Kind::kAny) && full(HttpSession::Kind::kProbe)) {
      co_await http_ended.wait(Deadline::after(std::chrono::seconds(1)));
      continue;
    }
    auto [ec, socket] = co_await http_acceptor.async_accept(kAwait);
    if (ec == asio::error::operation_aborted) break;
    if (ec) {
      // Out of descriptors, most likely: give connections time to end.
      spdlog::warn("accept: {}", ec.message());
      asio::steady_timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kAwait);
      continue;
    }
    const auto kind =
        full(HttpSession::Kind::kAny) ? HttpSession::Kind::kProbe : HttpSession::Kind::kAny;
    auto session = std::make_shared<HttpSession>(std::move(socket), shared, kind);
    http_sessions.insert(session);
    asio::co_spawn(io, serve_http(std::move(session)), asio::detached);
  }
}

awaitable<void> Server::Impl::serve_http(std::shared_ptr<HttpSession> session) {
  probes.http_connections(std::ssize(http_sessions));
  co_await session->run();
  http_sessions.erase(session);
  probes.http_connections(std::ssize(http_sessions));
  http_ended.notify();
}

bool Server::Impl::full(HttpSession::Kind kind) const {
  const auto open = std::count_if(http_sessions.begin(), http_sessions.end(),
                                  [kind](const auto& session) { return session->kind() == kind; });
  const bool any = kind == HttpSession::Kind::kAny;
  return open >= (any ? options.http.max_connections : options.http.probe_connections);
}

awaitable<void> Server::Impl::accept_groups() {
  while (group_acceptor.is_open()) {
    auto [ec, socket] = co_await group_acceptor.async_accept(kAwait);
    if (ec == asio::error::operation_aborted) break;
    if (ec) {
      asio::steady_timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kAwait);
      continue;
    }
    if (static_cast<int>(group_sessions.size()) >= kMaxGroupConnections) {
      spdlog::warn("{} group connections are open, the limit: one more refused",
                   group_sessions.size());
      continue;  // closes the socket
    }
    auto session = std::make_shared<GroupSession>(std::move(socket), scheduler);
    asio::co_spawn(io, serve_group(std::move(session)), asio::detached);
  }
}

awaitable<void> Server::Impl::serve_group(std::shared_ptr<GroupSession> session) {
  group_sessions.insert(session);
  co_await session->run(options.http.group_handshake);
  group_sessions.erase(session);
}

awaitable<void> Server::Impl::tick() {
  // Deadlines are kept to within this; a lost group is noticed a fifth of an interval late at most.
  const Duration step =
      std::clamp<Duration>(options.scheduler.heartbeat_interval / 5, std::chrono::milliseconds(2),
                           std::chrono::milliseconds(50));
  while (!stopping) {
    co_await ticking.wait(Deadline::after(step));
    scheduler.tick();
  }
}

awaitable<void> Server::Impl::handle_signals() {
  // The flag, because begin_shutdown() may have closed everything before it returns.
  while (!stopping) {
    const auto [ec, number] = co_await signals.async_wait(kAwait);
    if (ec) co_return;
    spdlog::info("signal {}: shutting down", number);
    begin_shutdown();
  }
}

void Server::Impl::begin_shutdown() {
  if (scheduler.draining()) {
    patient = false;
    return;
  }
  scheduler.drain();
  asio::co_spawn(io, drain(), asio::detached);
}

bool Server::Impl::answering() const {
  return std::any_of(http_sessions.begin(), http_sessions.end(),
                     [](const auto& session) { return session->answering(); });
}

awaitable<void> Server::Impl::drain() {
  asio::steady_timer pause(io);
  const auto wait_a_little = [&pause] {
    pause.expires_after(std::chrono::milliseconds(10));
    return pause.async_wait(kAwait);
  };
  const Deadline end = Deadline::after(options.shutdown_timeout);
  while (scheduler.busy() && patient && !end.passed()) co_await wait_a_little();
  if (scheduler.busy()) scheduler.abandon("the coordinator is shutting down");
  // The last answers go out.
  const Deadline flushed = Deadline::after(std::chrono::seconds(2));
  while (answering() && !flushed.passed()) co_await wait_a_little();
  close_all();
}

void Server::Impl::close_all() {
  stopping = true;
  error_code ignored;
  http_acceptor.close(ignored);
  group_acceptor.close(ignored);
  signals.cancel(ignored);
  for (const auto& session : http_sessions) session->close();
  for (const auto& session : group_sessions) session->close("the coordinator shuts down");
  ticking.notify();
  http_ended.notify();
}

}  // namespace millrace::coordinator
