// SPDX-License-Identifier: Apache-2.0
// Transport between threads of one process, for tests. A server is found by its address in the
// LocalTransport object that it listens on.
//
// Thread-safe. Connections and servers may outlive the transport.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/api/transport.h"

namespace millrace::comm {

class LocalMailbox;

class LocalTransport final : public Transport {
 public:
  using Transport::connect;
  using Transport::listen;

  // Port 0 takes a free number. kInvalidArgument if the address is taken.
  Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                  TransportServer::Handler handler,
                                                  TransportServer::Admits admits) override;
  // kPeerLost if nobody listens there.
  Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                       const std::string& capability,
                                                       Deadline deadline) override;

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<LocalMailbox>> mailboxes_;
  int next_port_ = 1;
};

}  // namespace millrace::comm
