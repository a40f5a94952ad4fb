// Transport over TCP: what ranks and decode nodes speak by default. docs/adr/0013-kv-port.md says why.
//
// Addresses are "tcp://host:port" ("tcp://[::1]:7000" for IPv6), or "tls://..." of servers with a
// certificate. A host name is resolved by the system's resolver, whose own time limit then applies;
// numeric addresses never wait.
//
// A server's port may be reachable by strangers: who does not say hello in time, with a capability
// that the server admits, gets a few hundred bytes of memory (with TLS some tens of KiB) and no
// answer but a refusal. What each side may take beyond that is TcpLimits.
//
// Payloads are sent straight from their pieces and received straight into the destination's.
// Thread-safe. Connections and servers may outlive the transport.
#pragma once

#include <memory>
#include <string>

#include "comm/api/transport.h"
#include "comm/tcp/tcp_limits.h"
#include "common/net/tls_files.h"

namespace millrace {
class TlsSource;
}  // namespace millrace

namespace millrace::comm {

struct TcpOptions {
  // That answer requests, of each server: its connections are shared out among them. One more lets
  // connections in.
  int server_threads = 1;
  // That make replies which take waiting for (TransportReply::later), of each server.
  int reader_threads = 4;
  TcpLimits limits = {};
  // Servers: with a certificate they are tls:// ones; with a CA, clients need a certificate, too. Read
  // again when they change.
  TlsFiles server_tls = {};
  // Connections to tls:// servers: whom they trust, and what they show. Read again when they change.
  TlsFiles client_tls = {};
};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(TcpOptions options);
  using Transport::connect;
  using Transport::listen;

  // kInvalidArgument: the files of client_tls are none. Connecting says so, too.
  Result<void> check_client_tls() const;

  // Port 0 takes a free one; address() of the server names it. An empty host is every interface,
  // which leaves address() without a host that a client could use. kInvalidArgument for TLS files
  // that are none.
  Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                  TransportServer::Handler handler,
                                                  TransportServer::Admits admits) override;
  Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                       const std::string& capability,
                                                       Deadline deadline) override;

 private:
  const TcpOptions options_;
  const std::shared_ptr<TlsSource> client_tls_;
};

}  // namespace millrace::comm
