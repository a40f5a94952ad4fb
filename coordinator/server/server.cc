// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <functional>
#include <map>

#include "common/host_port.h"
#include "common/log.h"
#include "common/logging/paced_line.h"
#include "common/secret.h"
#include "common/tracing/otlp_exporter.h"
#include "coordinator/access/token_table.h"
#include "coordinator/http/model_tokenizers.h"
#include "coordinator/net/client_address.h"
#include "coordinator/net/guarded.h"
#include "coordinator/server/group_session.h"
#include "coordinator/server/http_session.h"
#include "coordinator/server/stranger_table.h"
#include "coordinator/tracing/request_tracer.h"

namespace millrace::coordinator {

namespace {

Result<tcp::acceptor> listen(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code ec;
  const auto address = asio::ip::make_address(without_brackets(host), ec);
  if (ec) return error(Errc::kInvalidArgument, "'{}' is not an IP address to listen on", host);
  const tcp::endpoint endpoint(address, port);
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec)
    return error(Errc::kIo, "listen on {}: {}",
                 (HostPort{without_brackets(host), port}).to_string(), ec.message());
  return acceptor;
}

uint64_t body_pool_per_client(const HttpLimits& limits) {
  return limits.body_pool_per_client_bytes > 0
             ? limits.body_pool_per_client_bytes
             : std::max(limits.body_pool_bytes / 2, limits.max_body_bytes);
}

ConnectionTable::Limits connection_limits(const HttpLimits& limits) {
  return {.connections = limits.max_connections,
          .per_client = limits.max_connections_per_client > 0
                            ? limits.max_connections_per_client
                            : std::max(1, limits.max_connections / 2),
          .health_probes = limits.health_probe_connections};
}

template <typename Work>
class AtEnd {
 public:
  explicit AtEnd(Work work) : work_(std::move(work)) {}
  ~AtEnd() { work_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  Work work_;
};

}  // namespace

struct Server::Impl {
  explicit Impl(const ServerOptions& server_options)
      : options(server_options),
        metrics(registry),
        scheduler(options.scheduler, Clock::steady(), metrics, [this](const Request& request) {
          tracer.changed(request);
          changes.changed(request.id);
        }) {
    registry.gauge("millrace_build_info", "Always 1", {{"version", MILLRACE_VERSION}}).set(1);
  }

  awaitable<void> accept(tcp::acceptor& acceptor, std::function<void(tcp::socket)> take);
  void take_http(tcp::socket socket, bool by_admin_port);
  awaitable<void> serve_http(ConnectionTable::Id id, std::shared_ptr<HttpSession> session);
  void take_group(tcp::socket socket);
  awaitable<void> serve_group(StrangerTable::Id id, std::shared_ptr<GroupSession> session);
  Result<void> may_join() const;
  awaitable<void> tick();
  awaitable<void> handle_signals();
  awaitable<void> drain();
  bool answering() const;
  // Whether there are files to be read again.
  bool has_files() const;
  Result<void> load_files();
  Result<void> load_tokens();
  static Result<void> load_tls(const TlsFiles& files, TlsContext& context);
  void reload();
  Result<void> start_tracing();
  void begin_shutdown();
  void close_all();

  const ServerOptions options;
  metrics::Registry registry;
  CoordinatorMetrics metrics;
  ChangeHub changes;
  RequestTracer tracer{Clock::steady()};
  Scheduler scheduler;
  asio::thread_pool parsers{1};
  asio::thread_pool writers{1};
  asio::io_context io{1};
  BodyBudget bodies{options.http.body_pool_bytes, body_pool_per_client(options.http)};
  BodyBudget replies{options.http.reply_pool_bytes, options.http.reply_pool_bytes / 2};
  ConnectionTable connections{connection_limits(options.http)};
  TokenTable tokens;
  TlsContext http_tls;  // null: not encrypted
  TlsContext group_tls;
  ModelTokenizers tokenizers{registry};
  const std::string instance = random_id();
  const std::string names_key = random_id();
  HttpShared shared{options, tokens,  scheduler,  changes, metrics,  bodies,   parsers,
                    writers, replies, tokenizers, tracer,  instance, names_key};
  tcp::acceptor http_acceptor{io};
  tcp::acceptor admin_acceptor{io};
  tcp::acceptor group_acceptor{io};
  asio::signal_set signals{io};
  Notifier ticking{io.get_executor()};
  std::map<ConnectionTable::Id, std::shared_ptr<HttpSession>> http_sessions;
  StrangerTable strangers{
      {.all = options.groups.strangers, .of_address = options.groups.strangers_of_address}};
  std::map<StrangerTable::Id, std::shared_ptr<GroupSession>> group_sessions;
  GroupLines group_lines;
  PacedLine accept_line;
  bool stopping = false;
  bool patient = true;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::create(const ServerOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  MR_RETURN_IF_ERROR(impl->load_files());
  MR_RETURN_IF_ERROR(impl->tokenizers.create(options.tokenizers));
  MR_ASSIGN_OR_RETURN(impl->http_acceptor, listen(impl->io, options.host, options.http_port));
  if (options.admin_port) {
    MR_ASSIGN_OR_RETURN(impl->admin_acceptor, listen(impl->io, options.host, *options.admin_port));
  }
  MR_ASSIGN_OR_RETURN(impl->group_acceptor, listen(impl->io, options.host, options.group_port));
  MR_RETURN_IF_ERROR(impl->start_tracing());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::http_port() const {
  return impl_->http_acceptor.local_endpoint().port();
}
uint16_t Server::group_port() const {
  return impl_->group_acceptor.local_endpoint().port();
}

std::optional<uint16_t> Server::admin_port() const {
  if (!impl_->options.admin_port) return std::nullopt;
  return impl_->admin_acceptor.local_endpoint().port();
}

void Server::run(bool handle_signals) {
  Impl& self = *impl_;
  if (handle_signals) {
    self.signals.add(SIGTERM);
    self.signals.add(SIGINT);
    self.signals.add(SIGHUP);
    spawn_guarded(self.io, self.handle_signals(), "signals");
  }
  const auto listen_for_http = [&self](tcp::acceptor& acceptor, bool is_admin) {
    spawn_guarded(self.io,
                  self.accept(acceptor,
                              [&self, is_admin](tcp::socket socket) {
                                self.take_http(std::move(socket), is_admin);
                              }),
                  "HTTP listener");
  };
  listen_for_http(self.http_acceptor, false);
  if (self.options.admin_port) listen_for_http(self.admin_acceptor, true);
  spawn_guarded(self.io,
                self.accept(self.group_acceptor,
                            [&self](tcp::socket socket) { self.take_group(std::move(socket)); }),
                "group listener");
  spawn_guarded(self.io, self.tick(), "tick");
  // An exception from a library's own handler comes out here; everything else goes on.
  for (bool ended = false; !ended;) {
    try {
      self.io.run();
      ended = true;
    } catch (...) {
      log_exception(std::current_exception(), "handler");
    }
  }
}

void Server::shut_down() {
  asio::post(impl_->io, [this] { impl_->begin_shutdown(); });
}

void Server::reload() {
  asio::post(impl_->io, [this] { impl_->reload(); });
}

bool Server::Impl::has_files() const {
  return !options.token_file.empty() || !options.http_tls.certificate.empty() ||
         !options.group_tls.certificate.empty();
}

Result<void> Server::Impl::load_tokens() {
  return options.token_file.empty() ? Result<void>() : tokens.load(options.token_file);
}

Result<void> Server::Impl::load_tls(const TlsFiles& files, TlsContext& context) {
  if (files.certificate.empty()) return {};
  MR_ASSIGN_OR_RETURN(context, make_server_tls(files));
  return {};
}

Result<void> Server::Impl::load_files() {
  MR_RETURN_IF_ERROR(load_tokens());
  MR_RETURN_IF_ERROR(load_tls(options.http_tls, http_tls));
  return load_tls(options.group_tls, group_tls);
}

// Each file by itself: a mistake in one does not hold up the others.
void Server::Impl::reload() {
  if (!has_files()) return log::info("there are no files to read again");
  for (const Result<void>& loaded : {load_tokens(), load_tls(options.http_tls, http_tls),
                                     load_tls(options.group_tls, group_tls)}) {
    if (!loaded.ok()) {
      log::error("not reloaded, what was read before stays valid: {}", loaded.error().message);
    }
  }
  if (tokens.asks()) log::info("{} tokens are valid", tokens.size());
}

Result<void> Server::Impl::start_tracing() {
  if (!options.otlp_endpoint) return {};
  tracing::OtlpSettings settings{.endpoint = *options.otlp_endpoint};
  if (settings.endpoint.encrypted) {
    MR_ASSIGN_OR_RETURN(settings.tls, make_client_tls({}));
  }
  error_code unnamed;
  const std::string host = asio::ip::host_name(unnamed);
  const uint16_t port = http_acceptor.local_endpoint().port();
  settings.sender = {.service = "millrace-coordinator",
                     .instance = HostPort{unnamed ? options.host : host, port}.to_string(),
                     .version = MILLRACE_VERSION};
  tracer.start(std::make_unique<tracing::OtlpExporter>(std::move(settings), registry),
               options.trace_share);
  return {};
}

// Failing to accept one connection, for lack of descriptors or memory, must not end the loop.
awaitable<void> Server::Impl::accept(tcp::acceptor& acceptor,
                                     std::function<void(tcp::socket)> take) {
  while (acceptor.is_open()) {
    try {
      auto [ec, socket] = co_await acceptor.async_accept(kAwait);
      if (ec == asio::error::operation_aborted) break;
      if (!ec) {
        if (options.faults.accepting) options.faults.accepting();
        take(std::move(socket));
        continue;
      }
      // Out of descriptors, most likely: give connections time to end.
      if (const auto times = accept_line.due()) {
        log::warn("a connection cannot be accepted: {}{}", ec.message(), PacedLine::others(*times));
      }
      asio::steady_timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kAwait);
    } catch (...) {
      log_exception(std::current_exception(), "accept");
    }
  }
}

// Accepts every connection, so that none waits in the listener's queue, where a health probe would stand
// behind thousands of others.
void Server::Impl::take_http(tcp::socket socket, bool by_admin_port) {
  const auto admission = connections.admit(client_of(socket), by_admin_port);
  if (admission.gives_way) http_sessions.at(*admission.gives_way)->close();
  try {
    auto session = std::make_shared<HttpSession>(
        std::move(socket), by_admin_port ? TlsContext() : http_tls, shared, admission);
    http_sessions.emplace(admission.id, session);
    spawn_guarded(io, serve_http(admission.id, std::move(session)), "HTTP connection");
  } catch (...) {
    http_sessions.erase(admission.id);
    connections.leave(admission.id);
    throw;
  }
}

awaitable<void> Server::Impl::serve_http(ConnectionTable::Id id,
                                         std::shared_ptr<HttpSession> session) {
  metrics.http_connections(std::ssize(http_sessions));
  // Runs however the session ends, also by an exception of its own.
  const AtEnd leave([this, id, &session] {
    session->close();
    connections.leave(id);
    http_sessions.erase(id);
    metrics.http_connections(std::ssize(http_sessions));
  });
  co_await session->run();
}

void Server::Impl::take_group(tcp::socket socket) {
  const auto admission = strangers.admit(client_of(socket));
  if (admission.gives_way) {
    group_sessions.at(*admission.gives_way)->close("others came and it had not registered");
  }
  try {
    auto session = std::make_shared<GroupSession>(
        std::move(socket), group_tls,
        GroupSession::Context{.scheduler = scheduler,
                              .helpers = writers,
                              .faults = options.faults,
                              .lines = group_lines,
                              .may_join = [this] { return may_join(); },
                              .joined = [this, id = admission.id] { strangers.leave(id); }});
    group_sessions.emplace(admission.id, session);
    spawn_guarded(io, serve_group(admission.id, std::move(session)), "group connection");
  } catch (...) {
    group_sessions.erase(admission.id);
    strangers.leave(admission.id);
    throw;
  }
}

awaitable<void> Server::Impl::serve_group(StrangerTable::Id id,
                                          std::shared_ptr<GroupSession> session) {
  const AtEnd leave([this, id] {
    strangers.leave(id);
    group_sessions.erase(id);
  });
  co_await session->run(options.http.group_handshake);
}

Result<void> Server::Impl::may_join() const {
  const auto joined = std::ranges::count_if(
      group_sessions, [](const auto& entry) { return entry.second->registered(); });
  if (joined < options.groups.groups) return {};
  // Not final: a group tries again.
  return error(Errc::kUnavailable, "{} groups are connected, the limit", joined);
}

awaitable<void> Server::Impl::tick() {
  // Deadlines are kept to within this step; a lost group is noticed at most a fifth of an interval
  // late.
  const Duration step =
      std::clamp<Duration>(options.scheduler.heartbeat_interval / 5, std::chrono::milliseconds(2),
                           std::chrono::milliseconds(50));
  while (!stopping) {
    co_await ticking.wait(Deadline::after(step));
    try {
      if (options.faults.tick) options.faults.tick();
      scheduler.tick();
    } catch (...) {
      log_exception(std::current_exception(), "tick");
    }
  }
}

awaitable<void> Server::Impl::handle_signals() {
  // Checks the flag, because begin_shutdown() may have closed everything before it returns.
  while (!stopping) {
    const auto [ec, number] = co_await signals.async_wait(kAwait);
    if (ec) co_return;
    if (number == SIGHUP) {
      reload();
      continue;
    }
    log::info("signal {}: shutting down", number);
    begin_shutdown();
  }
}

void Server::Impl::begin_shutdown() {
  if (scheduler.draining()) {
    patient = false;
    return;
  }
  scheduler.drain();
  spawn_guarded(io, drain(), "shutdown");
}

bool Server::Impl::answering() const {
  return std::any_of(http_sessions.begin(), http_sessions.end(),
                     [](const auto& entry) { return entry.second->answering(); });
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
  // Lets the last answers go out.
  const Deadline flushed = Deadline::after(std::chrono::seconds(2));
  while (answering() && !flushed.passed()) co_await wait_a_little();
  close_all();
}

void Server::Impl::close_all() {
  stopping = true;
  error_code ignored;
  http_acceptor.close(ignored);
  admin_acceptor.close(ignored);
  group_acceptor.close(ignored);
  signals.cancel(ignored);
  for (const auto& [id, session] : http_sessions) session->close();
  for (const auto& [id, session] : group_sessions)
    session->close("the coordinator is shutting down");
  ticking.notify();
}

}  // namespace millrace::coordinator
