// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_server.h"

#include <utility>

#include "comm/net/address_scheme.h"
#include "comm/ucx/server_ports.h"

namespace millrace::comm {
namespace {

Result<SocketAddress> listen_further(UcxServerLane& lane, const SocketAddress& address) {
  MR_ASSIGN_OR_RETURN(const auto candidates, further_addresses(address));
  Result<SocketAddress> taken = candidates.front();
  for (const SocketAddress& candidate : candidates) {
    taken = lane.listen(candidate);
    // kExhausted: another process has taken the port; the next one is tried.
    if (taken.ok() || taken.error().code != Errc::kExhausted) break;
  }
  return taken;
}

}  // namespace

Result<std::unique_ptr<UcxServer>> UcxServer::listen(const std::shared_ptr<UcxContext>& context,
                                                     const SocketAddress& address, int num_threads,
                                                     int num_readers, Handler handler) {
  std::unique_ptr<UcxServer> server(new UcxServer(std::move(handler), num_readers));
  for (int i = 0; i < num_threads; ++i) {
    MR_ASSIGN_OR_RETURN(auto lane,
                        UcxServerLane::create(context, server->handler_, server->readers_,
                                              server->replies_, server->counts_));
    server->lanes_.push_back(std::move(lane));
  }
  MR_RETURN_IF_ERROR(server->start(address));
  return server;
}

Result<void> UcxServer::start(const SocketAddress& address) {
  MR_ASSIGN_OR_RETURN(const SocketAddress first, lanes_.front()->listen(address));
  std::vector<int> others;
  for (size_t i = 1; i < lanes_.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const SocketAddress further, listen_further(*lanes_[i], address));
    others.push_back(further.port());
  }
  address_ = with_scheme(kUcxScheme, join_ports(first.to_string(), others));
  replies_.set_name(address_);
  for (const auto& lane : lanes_) lane->start(address_);
  return {};
}

UcxServer::~UcxServer() {
  readers_.stop();  // before the lanes, to which they pass replies
  for (const auto& lane : lanes_) lane->stop();
}

TransportStats UcxServer::stats() const {
  TransportStats stats{.requests = counts_.requests.load(),
                       .bytes_received = counts_.bytes_received.load(),
                       .failures = counts_.failures.load()};
  for (int carrier = 0; carrier < kNumCarriers; ++carrier) {
    stats.bytes_sent_over[carrier] = counts_.bytes_sent_over[static_cast<size_t>(carrier)].load();
    stats.bytes_sent += stats.bytes_sent_over[carrier];
  }
  return stats;
}

}  // namespace millrace::comm
