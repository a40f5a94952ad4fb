#include "comm/ucx/ucx_server.h"

#include <utility>

#include "comm/net/address_scheme.h"
#include "comm/ucx/ucx_error.h"
#include "common/log.h"

namespace millrace::comm {
namespace {

constexpr int64_t kMaxClients = 1024;

}  // namespace

Result<std::unique_ptr<UcxServer>> UcxServer::listen(const std::shared_ptr<UcxContext>& context,
                                                     const SocketAddress& address, int num_threads,
                                                     int num_readers, Handler handler) {
  std::unique_ptr<UcxServer> server(new UcxServer(std::move(handler), num_readers));
  for (int i = 0; i < num_threads; ++i) {
    MR_ASSIGN_OR_RETURN(auto lane, UcxServerLane::create(context, server->handler_,
                                                         server->readers_, server->counts_));
    server->lanes_.push_back(std::move(lane));
  }
  MR_RETURN_IF_ERROR(server->start(address));
  return server;
}

Result<void> UcxServer::start(const SocketAddress& address) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.data();
  params.sockaddr.addrlen = address.size();
  params.conn_handler.cb = &UcxServer::on_connection;
  params.conn_handler.arg = this;
  if (const auto status =
          ucp_listener_create(lanes_.front()->worker().handle(), &params, &listener_);
      status != UCS_OK) {
    return ucx_error(status, fmt::format("listening on {}", address.to_string()));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const auto status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    ucp_listener_destroy(listener_);
    return ucx_error(status, "asking for the listener's address");
  }
  address_ = with_scheme(kUcxScheme, SocketAddress(attributes.sockaddr).to_string());
  for (size_t i = 1; i < lanes_.size(); ++i) lanes_[i]->start(address_);
  lanes_.front()->start(address_, [this] { ucp_listener_destroy(listener_); });
  return {};
}

UcxServer::~UcxServer() {
  readers_.stop();  // before the lanes, to which it gives what it has made
  // In order: once the first has stopped, nobody is given to the others any more.
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

void UcxServer::on_connection(ucp_conn_request_h request, void* self) {
  auto& server = *static_cast<UcxServer*>(self);
  if (server.counts_.clients >= kMaxClients) {
    spdlog::warn("UCX server {}: refusing a client: {} are connected, the limit", server.address_,
                 kMaxClients);
    ucp_listener_reject(server.listener_, request);
    ++server.counts_.failures;
    return;
  }
  ++server.counts_.clients;
  server.lanes_[server.next_lane_++ % server.lanes_.size()]->accept(request);
}

}  // namespace millrace::comm
