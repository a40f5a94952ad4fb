// Tells decode processes of this host where in a store's shared pools pages lie, for them to copy.
// Pages that are in no shared pool, as they are on disk, come over the transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/memfd/memfd_server.h"
#include "kvstore/kv_store.h"

namespace millrace::worker {

class PlaceServer {
 public:
  // Pins what the header of a page request asks for, in place, if its sender may have it.
  using Pin =
      std::function<Result<std::shared_ptr<kvstore::PinnedPages>>(std::string_view request)>;

  // `store` has shared pools and outlives the server. kIo.
  static Result<std::unique_ptr<PlaceServer>> start(const kvstore::KvStore& store, Pin pin,
                                                    const comm::MemfdServerOptions& options = {});

  // For clients that may read: by this name they find the server.
  const std::string& socket() const { return server_->name(); }
  int64_t num_requests() const { return num_requests_; }
  // Of pages whose places were told.
  int64_t bytes_told() const { return bytes_told_; }

 private:
  PlaceServer(std::vector<const SharedMemory*> pools, Pin pin)
      : pools_(std::move(pools)), pin_(std::move(pin)) {}
  comm::MemfdServer::Answer answer(std::string_view request);

  const std::vector<const SharedMemory*> pools_;
  const Pin pin_;
  std::atomic<int64_t> num_requests_ = 0, bytes_told_ = 0;
  std::unique_ptr<comm::MemfdServer> server_;  // last: it uses all of the above
};

}  // namespace millrace::worker
