// The server end: a listener, the lanes that share its connections, and the threads that read what
// replies must wait for. Each lane is a thread; the first one drives the listener too.
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
  static void on_connection(ucp_conn_request_h request, void* self);

  const Handler handler_;
  UcxServerCounts counts_;
  ReaderThreads readers_;
  ucp_listener_h listener_ = nullptr;
  std::string address_;
  size_t next_lane_ = 0;                               // on the first lane's thread
  std::vector<std::unique_ptr<UcxServerLane>> lanes_;  // last: they use all of the above
};

}  // namespace millrace::comm
