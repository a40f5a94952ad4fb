// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_server.h"

#include <utility>

#include "comm/net/address_scheme.h"
#include "comm/net/socket_address.h"
#include "common/host_port.h"

namespace millrace::comm {

Result<std::unique_ptr<TcpServer>> TcpServer::listen(const std::string& host, int port,
                                                     const TcpOptions& options, Handler handler,
                                                     Admits admits) {
  std::unique_ptr<TcpServer> server(new TcpServer(std::move(handler), std::move(admits), options));
  MR_RETURN_IF_ERROR(server->start(host, port, options));
  return server;
}

Result<void> TcpServer::start(const std::string& host, int port, const TcpOptions& options) {
  MR_ASSIGN_OR_RETURN(const auto wanted, SocketAddress::resolve(host, port));
  MR_ASSIGN_OR_RETURN(auto listener, TcpGate::listen_at(wanted));
  MR_ASSIGN_OR_RETURN(const auto bound, SocketAddress::of_socket(listener.get()));
  std::shared_ptr<TlsSource> tls;
  address_ = with_scheme(kTcpScheme, bound.to_string());
  if (!options.server_tls.certificate.empty()) {
    tls = std::make_shared<TlsSource>(options.server_tls, TlsSource::Side::kServer);
    MR_RETURN_IF_ERROR(tls->context());
    // Certificates are issued for names rather than numbers.
    const HostPort name{.host = without_brackets(host),
                        .port = static_cast<uint16_t>(bound.port())};
    address_ = with_scheme(kTlsScheme, host.empty() ? bound.to_string() : name.to_string());
  }
  replies_.set_name(address_);
  for (int i = 0; i < options.server_threads; ++i) {
    MR_ASSIGN_OR_RETURN(auto lane,
                        TcpServerLane::create(TcpServerLane::Context{.handler = handler_,
                                                                     .limits = limits_,
                                                                     .counts = counts_,
                                                                     .readers = readers_,
                                                                     .replies = replies_,
                                                                     .name = address_,
                                                                     .line = client_line_}));
    lanes_.push_back(std::move(lane));
  }
  MR_ASSIGN_OR_RETURN(
      gate_, TcpGate::create({.admits = admits_,
                              .limits = limits_,
                              .counts = counts_,
                              .quota = quota_,
                              .tls = std::move(tls),
                              .name = address_,
                              .take =
                                  [this](TcpStream stream, ConnectionQuota::Connection admitted) {
                                    lanes_[next_lane_++ % lanes_.size()]->adopt(
                                        std::move(stream), std::move(admitted));
                                  }},
                             std::move(listener)));
  for (const auto& lane : lanes_) lane->start();
  gate_->start();
  return {};
}

TcpServer::~TcpServer() {
  gate_.reset();    // no more clients
  readers_.stop();  // before the lanes, to which they pass replies
}

TransportStats TcpServer::stats() const {
  TransportStats stats{.requests = counts_.requests.load(),
                       .bytes_sent = counts_.bytes_sent.load(),
                       .bytes_received = counts_.bytes_received.load(),
                       .failures = counts_.failures.load(),
                       .refused = counts_.refused.load()};
  stats.bytes_sent_over[static_cast<size_t>(Carrier::kTcp)] = stats.bytes_sent;
  return stats;
}

}  // namespace millrace::comm
