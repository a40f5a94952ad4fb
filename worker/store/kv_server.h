// SPDX-License-Identifier: Apache-2.0
// A rank's server for decode nodes: turns page requests from the transport into reads of the store.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/api/transport.h"
#include "kvstore/leased_pages.h"
#include "protocol/kv_messages.pb.h"
#include "worker/store/place_server.h"

namespace millrace::worker {

class KvServer {
 public:
  // Listens on host:port (0: any) from construction on. `transport` and `store` outlive the server.
  // `epoch` is the group's id: requests made under another are refused, so a restarted group never
  // answers an old manifest. Where the transport asks for it (comm/tcp), a client that connects
  // must show a lease id that the store knows. Where the store shares its memory, processes of this
  // host and user may copy pages from it (PlaceServer).
  static Result<std::unique_ptr<KvServer>> start(comm::Transport& transport,
                                                 kvstore::LeasedPages& store, std::string epoch,
                                                 const std::string& host, int port);

  std::string address() const { return server_->address(); }
  // Pages whose places were told to processes of this host count as sent.
  comm::TransportStats stats() const;

 private:
  KvServer(kvstore::LeasedPages& store, std::string epoch)
      : store_(store), epoch_(std::move(epoch)) {}

  void start_places();
  comm::TransportReply answer(std::string_view request_header);
  Result<comm::TransportReply> serve(std::string_view request_header);
  Result<comm::TransportReply> pages(const protocol::PageRequest& request);
  Result<comm::TransportReply> scores(const protocol::PageRequest& request) const;
  comm::TransportReply reply_of(std::shared_ptr<kvstore::PinnedPages> pinned,
                                bool digests_only) const;
  Result<protocol::PageRequest> read_request(std::string_view header) const;
  Result<std::unique_ptr<kvstore::PinnedPages>> pin(const protocol::PageRequest& request);

  kvstore::LeasedPages& store_;
  std::string epoch_;
  std::unique_ptr<PlaceServer> places_;  // where the store shares its memory
  std::unique_ptr<comm::TransportServer> server_;
};

}  // namespace millrace::worker
