// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_transport.h"

#include <unistd.h>

#include <utility>

#include "comm/net/address_scheme.h"
#include "comm/net/socket_address.h"
#include "comm/ucx/server_ports.h"
#include "comm/ucx/ucx_connection.h"
#include "comm/ucx/ucx_context.h"
#include "comm/ucx/ucx_server.h"

namespace millrace::comm {

std::vector<std::pair<std::string, UcxTransports>> ucx_transport_names() {
  return {{"auto", UcxTransports::kAuto},
          {"shm", UcxTransports::kSharedMemory},
          {"tcp", UcxTransports::kTcp}};
}

UcxTransport::UcxTransport(UcxOptions options, std::shared_ptr<UcxContext> context)
    // Starts at a port that depends on the process, so that clients with one connection each, in
    // processes of their own, are spread too.
    : options_(options),
      context_(std::move(context)),
      next_port_(static_cast<unsigned>(::getpid())) {}

Result<std::unique_ptr<UcxTransport>> UcxTransport::create(UcxOptions options) {
  MR_ASSIGN_OR_RETURN(auto context, UcxContext::create(options));
  return std::unique_ptr<UcxTransport>(new UcxTransport(options, std::move(context)));
}

Result<std::unique_ptr<TransportServer>> UcxTransport::listen(const std::string& host, int port,
                                                              TransportServer::Handler handler,
                                                              TransportServer::Admits) {
  MR_ASSIGN_OR_RETURN(const auto address, SocketAddress::resolve(host, port));
  if (!address.is_loopback()) {
    return error(Errc::kInvalidArgument,
                 "UCX listens on this host only, not on {}: whoever reaches its ports can end it",
                 address.to_string());
  }
  MR_ASSIGN_OR_RETURN(auto server, UcxServer::listen(context_, address, options_.server_threads,
                                                     options_.reader_threads, std::move(handler)));
  return std::unique_ptr<TransportServer>(std::move(server));
}

Result<std::unique_ptr<TransportConnection>> UcxTransport::connect(const std::string& address,
                                                                   const std::string&,
                                                                   Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const std::string where, without_scheme(address, kUcxScheme));
  MR_ASSIGN_OR_RETURN(const auto ports, split_ports(where));
  MR_ASSIGN_OR_RETURN(const auto target, SocketAddress::parse(ports[next_port_++ % ports.size()]));
  MR_ASSIGN_OR_RETURN(auto connection, UcxConnection::open(context_, target, deadline));
  // If shared memory is not possible, UCX silently uses TCP.
  if (options_.transports == UcxTransports::kSharedMemory &&
      connection->transport_name() != "shm") {
    return error(Errc::kUnavailable,
                 "the connection to {} uses {}, but shared memory was requested", address,
                 connection->transport_name());
  }
  return std::unique_ptr<TransportConnection>(std::move(connection));
}

}  // namespace millrace::comm
