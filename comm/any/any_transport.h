// SPDX-License-Identifier: Apache-2.0
// Picks a transport by the scheme of an address: comm/tcp for tcp:// and tls://, and for other
// schemes the transport that was added for them. Thread-safe once all are added. Connections and
// servers may outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/api/transport.h"
#include "comm/tcp/tcp_transport.h"

namespace millrace::comm {

class AnyTransport final : public Transport {
 public:
  using Make = std::function<Result<std::unique_ptr<Transport>>()>;

  // `tcp` none: uses only the transports that are added.
  explicit AnyTransport(const std::optional<TcpOptions>& tcp) {
    if (tcp) tcp_.emplace(*tcp);
  }
  // Finds out whether the files for tls:// can be used before the first such address is met.
  Result<void> check_tls() const { return tcp_ ? tcp_->check_client_tls() : Result<void>(); }
  // Addresses of this scheme use this transport, which is made when the first one is met.
  void add(std::string scheme, Make make);
  using Transport::connect;
  using Transport::listen;

  // Uses comm/tcp.
  Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                  TransportServer::Handler handler,
                                                  TransportServer::Admits admits) override;
  // kUnsupported names the known schemes.
  Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                       const std::string& capability,
                                                       Deadline deadline) override;

 private:
  struct Other {
    Make make;
    std::unique_ptr<Transport> made;
  };
  Result<Transport*> transport_of(const std::string& scheme);

  std::optional<TcpTransport> tcp_;
  std::mutex mutex_;
  std::map<std::string, Other> others_;  // by scheme
};

}  // namespace millrace::comm
