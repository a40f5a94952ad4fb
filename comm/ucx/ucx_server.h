// SPDX-License-Identifier: Apache-2.0
// The server end: lanes, each a thread with a port of its own, and the threads that read what
// replies must wait for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "comm/net/reader_threads.h"
#include "comm/ucx/ucx_server_lane.h"

namespace millrace::comm {

class UcxServer final : public TransportServer {
 public:
  // The first lane takes `address`, the others take those of further_addresses().
  static Result<std::unique_ptr<UcxServer>> listen(const std::shared_ptr<UcxContext>& context,
                                                   const SocketAddress& address, int num_threads,
                                                   int num_readers, Handler handler);
  ~UcxServer() override;

  std::string address() const override { return address_; }
  TransportStats stats() const override;

 private:
  UcxServer(Handler handler, int num_readers)
      : handler_(std::move(handler)), readers_(num_readers) {}
  Result<void> start(const SocketAddress& address);

  const Handler handler_;
  UcxServerCounts counts_;
  ReplyMaker replies_{counts_.failures};
  ReaderThreads readers_;
  std::string address_;
  std::vector<std::unique_ptr<UcxServerLane>> lanes_;  // last: they use all of the above
};

}  // namespace millrace::comm
