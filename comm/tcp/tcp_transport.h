// SPDX-License-Identifier: Apache-2.0
// Transport over TCP: the default between ranks and decode nodes. docs/adr/0013-kv-port.md says
// why.
//
// Addresses are "tcp://host:port" ("tcp://[::1]:7000" for IPv6), or "tls://..." for servers with a
// certificate. The system's resolver resolves host names, and its own time limit applies; numeric
// addresses never wait.
//
// Strangers may be able to reach a server's port. A client that does not say hello in time, with a
// capability that the server admits, gets a few hundred bytes of memory (with TLS some tens of KiB)
// and no answer but a refusal. TcpLimits says what each side may take beyond that.
//
// Payloads are sent directly from their pieces and received directly into the destination's.
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
  // Threads of each server that answer requests: its connections are shared out among them. One
  // more thread lets connections in.
  int server_threads = 1;
  // Threads of each server that make replies which must wait (TransportReply::later).
  int reader_threads = 4;
  TcpLimits limits = {};
  // For servers: with a certificate they are tls:// servers; with a CA, clients need a certificate
  // too. Read again when they change.
  TlsFiles server_tls = {};
  // For connections to tls:// servers: whom they trust, and what they show. Read again when they
  // change.
  TlsFiles client_tls = {};
};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(TcpOptions options);
  using Transport::connect;
  using Transport::listen;

  // kInvalidArgument: the files of client_tls are not valid. Connecting gives the same error.
  Result<void> check_client_tls() const;

  // Port 0 takes a free one; address() of the server names it. An empty host means every interface;
  // then address() has no host that a client could use. kInvalidArgument if TLS files are not
  // valid.
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
