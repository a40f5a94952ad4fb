// SPDX-License-Identifier: Apache-2.0
// Transport over UCX: shared memory between processes of one host, TCP or RDMA between hosts,
// chosen per connection. docs/adr/0003-kv-transport.md says why it is used this way.
//
// Addresses are "ucx://host:port" ("ucx://[::1]:7000" for IPv6), or "ucx://host:port,port" for a
// server with several threads, each with a port of its own; connections use them in turn. The
// system's resolver resolves host names, and its own time limit applies; numeric addresses never
// wait.
//
// Thread-safe. Connections and servers may outlive the transport.
//
// For trusted networks only: there is no authentication or encryption, everybody is admitted, and
// UCX itself may end the process if a stranger sends bytes that are not a connection request.
// Strangers must not be able to reach its ports (docs/adr/0013-kv-port.md).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/transport.h"

namespace millrace::comm {

class UcxContext;

enum class UcxTransports {
  kAuto,          // the best that both ends have; UCX_TLS, UCX_NET_DEVICES etc. apply
  kSharedMemory,  // connecting to another host is an error
  kTcp,
};

// With the names that command-line options use.
std::vector<std::pair<std::string, UcxTransports>> ucx_transport_names();

struct UcxOptions {
  UcxTransports transports = UcxTransports::kAuto;
  // True: UCX's messages go to the default logger. False: they stay where the process, which may
  // use UCX itself, has put them.
  bool owns_log = true;
  // Threads of each server that answer requests. Each listens at a port of its own.
  int server_threads = 1;
  // Threads of each server that make replies which must wait (TransportReply::later).
  int reader_threads = 4;
};

class UcxTransport final : public Transport {
 public:
  static Result<std::unique_ptr<UcxTransport>> create(UcxOptions options);
  using Transport::connect;
  using Transport::listen;

  // Port 0 takes a free one; address() of the server names it. `port` is the first thread's; the
  // others take free ones, from UCX_TCP_PORT_RANGE if that is set. An empty host means every
  // interface; then address() has no host that a client could use.
  Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                  TransportServer::Handler handler,
                                                  TransportServer::Admits admits) override;
  Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                       const std::string& capability,
                                                       Deadline deadline) override;

 private:
  UcxTransport(UcxOptions options, std::shared_ptr<UcxContext> context);

  const UcxOptions options_;
  const std::shared_ptr<UcxContext> context_;
  std::atomic<unsigned> next_port_;  // index of the server's port for the next connection
};

}  // namespace millrace::comm
