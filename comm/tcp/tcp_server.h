// SPDX-License-Identifier: Apache-2.0
// The server end: a gate that lets clients in, the lanes that share the clients, and the threads
// that read what replies must wait for.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "comm/net/reader_threads.h"
#include "comm/tcp/tcp_gate.h"
#include "comm/tcp/tcp_server_lane.h"
#include "comm/tcp/tcp_transport.h"

namespace millrace::comm {

class TcpServer final : public TransportServer {
 public:
  static Result<std::unique_ptr<TcpServer>> listen(const std::string& host, int port,
                                                   const TcpOptions& options, Handler handler,
                                                   Admits admits);
  ~TcpServer() override;

  std::string address() const override { return address_; }
  TransportStats stats() const override;

 private:
  TcpServer(Handler handler, Admits admits, const TcpOptions& options)
      : handler_(std::move(handler)),
        admits_(std::move(admits)),
        limits_(options.limits),
        quota_({.all = options.limits.max_clients,
                .of_capability = options.limits.max_clients_of_lease,
                .idle = options.limits.gives_way_after},
               Clock::steady()),
        readers_(options.reader_threads) {}
  Result<void> start(const std::string& host, int port, const TcpOptions& options);

  const Handler handler_;
  const Admits admits_;
  const TcpLimits limits_;
  TcpServerCounts counts_;
  ConnectionQuota quota_;
  ReplyMaker replies_{counts_.failures};
  PacedLine client_line_;
  ReaderThreads readers_;
  std::string address_;
  std::vector<std::unique_ptr<TcpServerLane>> lanes_;
  size_t next_lane_ = 0;           // on the gate's thread
  std::unique_ptr<TcpGate> gate_;  // last: it uses all of the above
};

}  // namespace millrace::comm
