// One rank of a group, put together: runtime, store, the server that pages leave by, and on rank 0
// the link to the coordinator. The same in millrace-worker and in tests with ranks as threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/api/transport.h"
#include "kvstore/kv_store.h"
#include "protocol/control_messages.pb.h"
#include "worker/control/control_board.h"
#include "worker/control/control_link.h"
#include "worker/events/cache_events.h"
#include "worker/group/group_service.h"
#include "worker/peers/peer_pools.h"
#include "worker/prompt/group_options.h"
#include "worker/runtime/rank_runtime.h"
#include "worker/store/kv_server.h"
#include "worker/store/store_pools.h"
#include "worker/store/store_tender.h"
#include "worker/watch/group_watch.h"

namespace millrace::worker {

struct GroupRankOptions {
  RankOptions rank;
  GroupOptions group;
  std::string group_name = "group-0";  // in metrics
  PoolOptions pools;                   // as make_rank_store() has them, but for the group's name
  std::string kv_host = "127.0.0.1";
  int kv_port = 0;  // of rank 0's KV server, rank r takes kv_port + r; 0: free ones
};

// On rank 0, once the group can serve: `description` is what it registers with. The board outlives
// the link.
using ConnectToCoordinator = std::function<std::unique_ptr<ControlLink>(
    protocol::Register description, ControlBoard& board)>;

// On rank 0: where events of the KV cache go.
using OpenEvents = std::function<Result<std::unique_ptr<EventPublisher>>()>;

// Where a process differs from a thread of a test; all outlive the rank.
struct RankSurroundings {
  comm::Transport& transport;  // that pages leave by
  ConnectToCoordinator connect;
  GroupWatch* watch = nullptr;  // null where nobody watches
  const Clock& clock = Clock::steady();
  OpenEvents open_events = nullptr;  // null, on all ranks: none are made
};

class GroupRank {
 public:
  // Collective over `world`, on all ranks or none; after an error the watch is left.
  static Result<std::unique_ptr<GroupRank>> start(std::unique_ptr<comm::Communicator> world,
                                                  const GroupRankOptions& options,
                                                  const RankSurroundings& surroundings);

  // GroupService::run. Afterwards the watch is left in good order, or after kPeerLost given up, and
  // the coordinator has been sent what it was to hear: the process may end.
  Result<void> serve(const std::atomic<bool>& stop);

 private:
  GroupRank(const GroupRankOptions& options, const RankSurroundings& surroundings)
      : options_(options), surroundings_(surroundings), board_(surroundings.clock) {}

  Result<void> assemble(std::unique_ptr<comm::Communicator> world);
  Result<void> connect_peers(Deadline deadline);
  Result<void> start_server(Deadline deadline);
  Result<void> start_events(Deadline deadline);
  protocol::Register description() const;
  void log_start() const;
  void keep_prefixes();

  GroupRankOptions options_;
  const RankSurroundings surroundings_;
  std::unique_ptr<RankRuntime> runtime_;
  std::unique_ptr<PeerPools> peers_;  // null, on all ranks: lanes do without
  std::unique_ptr<kvstore::KvStore> store_;
  std::unique_ptr<StoreTender> tender_;
  std::unique_ptr<KvServer> server_;
  ControlBoard board_;
  std::unique_ptr<EventPublisher> publisher_;  // rank 0's, where there are events
  std::optional<CacheEvents> events_;
  std::unique_ptr<ControlLink> link_;  // rank 0's
  std::unique_ptr<GroupService> service_;
};

// Collective: an id for the group that rank 0 draws. It is new at every start, so nothing of an
// earlier life is mistaken for this one's.
Result<std::string> draw_epoch(comm::Communicator& world);

}  // namespace millrace::worker
