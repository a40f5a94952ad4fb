// Transport over UCX: shared memory between processes of one host, TCP or RDMA between hosts,
// chosen per connection. docs/adr/0003-kv-transport.md says why it is used the way it is.
//
// Addresses are "ucx://host:port" ("ucx://[::1]:7000" for IPv6), or "ucx://host:port,port" of a server with
// several threads, each of which has a port; connections take them in turn. A host name is resolved by
// the system's resolver, whose own time limit then applies; numeric addresses never wait.
//
// Thread-safe. Connections and servers may outlive the transport.
//
// For trusted networks: neither authentication nor encryption, everybody is admitted, and UCX itself
// may end the process when a stranger sends bytes that are no connection request. Its ports are to
// be unreachable for strangers (docs/adr/0013-kv-port.md).
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
  kAuto,          // the best that both ends have; UCX_TLS, UCX_NET_DEVICES ... apply
  kSharedMemory,  // connecting to another host is an error
  kTcp,
};

// By the words that options of programs have for them.
std::vector<std::pair<std::string, UcxTransports>> ucx_transport_names();

struct UcxOptions {
  UcxTransports transports = UcxTransports::kAuto;
  // What UCX has to say goes to the default logger; else where the process, which may use UCX by
  // itself, has it.
  bool owns_log = true;
  // That answer requests, of each server. Each listens at a port of its own.
  int server_threads = 1;
  // That make replies which take waiting for (TransportReply::later), of each server.
  int reader_threads = 4;
};

class UcxTransport final : public Transport {
 public:
  static Result<std::unique_ptr<UcxTransport>> create(UcxOptions options);
  using Transport::connect;
  using Transport::listen;

  // Port 0 takes a free one; address() of the server names it. `port` is the first thread's, the others
  // take free ones, of UCX_TCP_PORT_RANGE if that is set. An empty host is every interface,
  // which leaves address() without a host that a client could use.
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
  std::atomic<unsigned> next_port_;  // of a server, for the next connection
};

}  // namespace millrace::comm
