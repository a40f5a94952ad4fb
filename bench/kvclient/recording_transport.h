// SPDX-License-Identifier: Apache-2.0
// A transport that records which pages its connections asked for and when they arrived, for all
// calls that succeeded.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/clock.h"
#include "protocol/kv_messages.pb.h"

namespace millrace::bench {

struct PageArrival {
  protocol::PageRequest request;
  TimePoint when;
};

class RecordingTransport final : public comm::Transport {
 public:
  // `inner` must outlive this, and this must outlive its connections.
  explicit RecordingTransport(comm::Transport& inner) : inner_(inner) {}
  using Transport::connect;
  using Transport::listen;

  Result<std::unique_ptr<comm::TransportServer>> listen(
      const std::string& host, int port, comm::TransportServer::Handler handler,
      comm::TransportServer::Admits admits) override {
    return inner_.listen(host, port, std::move(handler), std::move(admits));
  }
  Result<std::unique_ptr<comm::TransportConnection>> connect(const std::string& address,
                                                             const std::string& capability,
                                                             Deadline deadline) override;
  // The arrivals since the last call.
  std::vector<PageArrival> take();

 private:
  class Connection;
  void note(std::string_view header);

  comm::Transport& inner_;
  std::mutex mutex_;
  std::vector<PageArrival> arrivals_;
};

}  // namespace millrace::bench
