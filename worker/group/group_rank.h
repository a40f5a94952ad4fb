// SPDX-License-Identifier: Apache-2.0
// One rank of a group, assembled: runtime, store, the server that pages leave by, and on rank 0 the
// link to the coordinator. The same in millrace-worker and in tests with ranks as threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "comm/api/transport.h"
#include "engine/runtime/rank_runtime.h"
#include "kvstore/kv_store.h"
#include "protocol/control_messages.pb.h"
#include "worker/control/control_board.h"
#include "worker/control/control_link.h"
#include "worker/events/group_cache.h"
#include "worker/group/group_service.h"
#include "worker/peers/peer_pools.h"
#include "worker/prompt/group_options.h"
#include "worker/store/kv_server.h"
#include "worker/store/store_pools.h"
#include "worker/store/store_tender.h"
#include "worker/sync/rank_watch.h"

namespace millrace::worker {

struct GroupRankOptions {
  engine::RankOptions rank;
  GroupOptions group;
  std::string group_name = "group-0";  // in metrics
  PoolOptions pools;                   // as for make_rank_store(), without the group's name
  std::string kv_host = "127.0.0.1";
  int kv_port = 0;  // of rank 0's KV server; rank r takes kv_port + r; 0: any free ports
};

// Called on rank 0, once the group can serve. `description` is what the group registers with. The
// board outlives the link.
using ConnectToCoordinator = std::function<std::unique_ptr<ControlLink>(
    protocol::Register description, ControlBoard& board)>;

// Called on rank 0. Returns where events of the KV cache go.
using OpenEvents = std::function<Result<std::unique_ptr<EventPublisher>>()>;

// What differs between a process and a thread of a test; all outlive the rank.
struct RankContext {
  comm::Transport& transport;  // that pages leave by
  ConnectToCoordinator connect;
  RankWatch* watch = nullptr;  // null: no watch
  const Clock& clock = Clock::steady();
  OpenEvents open_events = nullptr;  // null, on all ranks: no events are made
};

class GroupRank {
 public:
  // Collective over `world`; succeeds on all ranks or on none. After an error the rank leaves the
  // watch.
  static Result<std::unique_ptr<GroupRank>> start(std::unique_ptr<comm::Communicator> world,
                                                  const GroupRankOptions& options,
                                                  const RankContext& context);

  // Runs GroupService::run. Afterwards the rank has left the watch in good order, or given it up
  // after kPeerLost, and the coordinator has been sent all messages: the process may end.
  Result<void> serve(const std::atomic<bool>& stop);

 private:
  GroupRank(const GroupRankOptions& options, const RankContext& context)
      : options_(options), context_(context), board_(context.clock) {}

  Result<void> assemble(std::unique_ptr<comm::Communicator> world);
  Result<void> connect_peers(Deadline deadline);
  Result<void> start_server(Deadline deadline);
  Result<void> open_events(Deadline deadline);
  Result<void> find_kept(Deadline deadline);
  protocol::Register description() const;
  void log_start() const;
  void keep_prefixes();

  GroupRankOptions options_;
  const RankContext context_;
  std::unique_ptr<engine::RankRuntime> runtime_;
  std::unique_ptr<PeerPools> peers_;  // null, on all ranks: lanes read only their own pages
  std::unique_ptr<kvstore::KvStore> store_;
  std::shared_ptr<PoolLocker> pool_locker_;  // null on a device whose memory is the host's
  std::unique_ptr<StoreTender> tender_;
  std::unique_ptr<KvServer> server_;
  ControlBoard board_;
  std::unique_ptr<EventPublisher> publisher_;  // rank 0's, where there are events
  std::unique_ptr<GroupCache> cache_;
  std::unique_ptr<ControlLink> link_;  // rank 0's
  std::unique_ptr<GroupService> service_;
};

// Collective. An id for the group, which rank 0 draws at random. It is new at every start, so that
// nothing from an earlier start is mistaken for this one's.
Result<std::string> draw_epoch(comm::Communicator& world);

}  // namespace millrace::worker
