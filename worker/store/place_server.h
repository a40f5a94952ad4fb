// SPDX-License-Identifier: Apache-2.0
// Tells decode processes of this host where pages lie in a store's shared pools, so that they copy
// the pages themselves. The pools are those in host memory and, for processes that ask for it, the
// one in a GPU's memory. Pages in no shared pool, such as those on disk, come over the transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/memfd/memfd_server.h"
#include "kvstore/leased_pages.h"
#include "protocol/place_messages.pb.h"

namespace millrace::worker {

class PlaceServer {
 public:
  struct Asked {
    std::shared_ptr<kvstore::PinnedPages> pinned;
    bool device_places = false;  // PageRequest::device_places
  };
  // Pins, in place, the pages that the header of a page request asks for, if its sender may have
  // them.
  using Pin = std::function<Result<Asked>(std::string_view request)>;

  // `store` has shared pools and outlives the server. Fails with kIo.
  static Result<std::unique_ptr<PlaceServer>> start(const kvstore::LeasedPages& store, Pin pin,
                                                    const comm::MemfdServerOptions& options = {});

  // The name by which clients find the server. Only those that may read are told it.
  const std::string& socket() const { return server_->name(); }
  int64_t num_requests() const { return num_requests_; }
  // Bytes of the pages whose places were told.
  int64_t bytes_told() const { return bytes_told_; }

 private:
  PlaceServer(const kvstore::LeasedPages& store, Pin pin)
      : page_bytes_(store.geometry().page_bytes()),
        pools_(store.shared_pools()),
        device_pool_(store.shared_device_pool()),
        pin_(std::move(pin)) {}
  comm::MemfdServer::Answer answer(std::string_view request);

  // The places of the pinned pages, in the order of pinned.pages().
  protocol::PlaceReply places(kvstore::PinnedPages& pinned, bool device_places);

  const int64_t page_bytes_;
  const std::vector<const SharedMemory*> pools_;
  const std::optional<kvstore::SharedDeviceMemory> device_pool_;
  const Pin pin_;
  std::atomic<int64_t> num_requests_ = 0, bytes_told_ = 0;
  std::unique_ptr<comm::MemfdServer> server_;  // last: it uses all of the above
};

}  // namespace millrace::worker
