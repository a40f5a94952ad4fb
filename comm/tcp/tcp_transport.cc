// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_transport.h"

#include <utility>

#include "comm/net/address_scheme.h"
#include "comm/tcp/tcp_connection.h"
#include "comm/tcp/tcp_server.h"
#include "common/net/tls_source.h"

namespace millrace::comm {

TcpTransport::TcpTransport(TcpOptions options)
    : options_(std::move(options)),
      client_tls_(std::make_shared<TlsSource>(options_.client_tls, TlsSource::Side::kClient)) {}

Result<void> TcpTransport::check_client_tls() const {
  MR_RETURN_IF_ERROR(client_tls_->context());
  return {};
}

Result<std::unique_ptr<TransportServer>> TcpTransport::listen(const std::string& host, int port,
                                                              TransportServer::Handler handler,
                                                              TransportServer::Admits admits) {
  MR_ASSIGN_OR_RETURN(
      auto server, TcpServer::listen(host, port, options_, std::move(handler), std::move(admits)));
  return std::unique_ptr<TransportServer>(std::move(server));
}

Result<std::unique_ptr<TransportConnection>> TcpTransport::connect(const std::string& address,
                                                                   const std::string& capability,
                                                                   Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto target, split_scheme(address));
  if (target.scheme != kTcpScheme && target.scheme != kTlsScheme) {
    return error(Errc::kUnsupported, "address \"{}\" is not for tcp:// or tls://", address);
  }
  if (capability.size() > kMaxCapabilityBytes) {
    return error(Errc::kInvalidArgument, "a capability of {} bytes, limit {}", capability.size(),
                 kMaxCapabilityBytes);
  }
  TlsContext tls;
  if (target.scheme == kTlsScheme) {
    MR_ASSIGN_OR_RETURN(tls, client_tls_->context());
  }
  MR_ASSIGN_OR_RETURN(auto connection,
                      TcpConnection::open(address, target.where, tls, capability, deadline));
  return std::unique_ptr<TransportConnection>(std::move(connection));
}

}  // namespace millrace::comm
