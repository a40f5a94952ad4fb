// A worker group at work: rank 0 takes requests from the coordinator, all ranks prefill, their KV
// servers keep answering decode nodes meanwhile. One command goes round the group per request,
// lease change or tick, and a boundary meeting per layer.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvstore/kv_store.h"
#include "worker/control/control_board.h"
#include "worker/control/control_link.h"
#include "worker/group/group_metrics.h"
#include "worker/group/request_inbox.h"
#include "worker/runtime/rank_runtime.h"
#include "worker/store/kv_server.h"
#include "worker/store/page_writer.h"
#include "worker/watch/group_watch.h"

namespace millrace::worker {

struct GroupOptions {
  std::string epoch;  // the group's id, the same on all ranks
  std::string head_plan = "auto";
  double min_recall = 0;  // of requests that name none
  Duration layer_timeout = std::chrono::minutes(5);
  Duration drain_timeout = std::chrono::seconds(30);
  Duration max_lease = std::chrono::hours(1);
  Duration default_lease = std::chrono::seconds(30);
};

class GroupService {
 public:
  // All arguments outlive the service. `link`: rank 0's, null elsewhere. `board`: written on rank
  // 0. `watch`: null where nobody watches. `clock`: of the deadlines of requests and of a drain.
  GroupService(RankRuntime& runtime, kvstore::KvStore& store, KvServer& server, ControlLink* link,
               ControlBoard& board, GroupWatch* watch, const GroupOptions& options,
               const Clock& clock = Clock::steady())
      : runtime_(runtime),
        store_(store),
        server_(server),
        link_(link),
        board_(board),
        watch_(watch),
        options_(options),
        clock_(clock),
        inbox_(clock) {}

  // Until rank 0 sees `stop` or is told to drain, and then has finished what runs and seen the
  // leases end (at most drain_timeout). kPeerLost: the group is broken, the process should end; any
  // other error is the same on all ranks.
  Result<void> run(const std::atomic<bool>& stop);

 private:
  // Of one prompt, on all ranks (group_prefill.cc).
  struct Running;
  struct Finished;

  Result<void> make_writer();
  protocol::GroupCommand next_command();
  void look_for_drain();
  bool may_stop();
  void read_link(Duration longest_wait);
  Result<void> obey(const protocol::GroupCommand& command);
  Result<void> change_lease(const protocol::LeaseChange& change);
  void note_lease_change(const protocol::LeaseChange& change, const Result<void>& outcome);
  Result<void> run_prompt(const protocol::RunPrompt& prompt);
  Result<model::HeadPlan> plan_for(const protocol::RunPrompt& prompt, int64_t num_tokens) const;
  // On all ranks or none.
  Result<std::vector<int32_t>> checked_tokens(const protocol::RunPrompt& prompt);
  Result<Finished> prefill(const protocol::RunPrompt& prompt, StageClock& stages);
  Result<void> seal(const Running& running, Finished& finished);
  Result<void> announce(const protocol::RunPrompt& prompt);
  Result<void> may_go_on(const protocol::RunPrompt& prompt, const LayerReport& report) const;
  Result<void> at_boundary(Running& running, const LayerReport& report);
  Result<int32_t> num_reportable(const Running& running);
  void report_layers(Running& running, int32_t end_layer);
  Result<protocol::Manifest> manifest(const protocol::RunPrompt& prompt,
                                      const PrefillResult* result,
                                      const kvstore::Placement& placement);
  void log_end(const protocol::RunPrompt& prompt, const Result<Finished>& finished,
               const Result<void>& outcome, double elapsed_s) const;
  void send_done(const Finished& finished, protocol::Manifest manifest, StageClock& stages);
  Result<void> post_metrics();
  void send(const protocol::Envelope& envelope);
  void send_failed(const std::string& request_id, const Error& error);
  Duration lease_of(uint64_t lease_ms) const;
  Duration command_timeout() const;
  void expect(const std::string& step, Duration allowed);
  Result<void> meet_after(const Error& failure);
  Error broken(const Error& failure) const;

  RankRuntime& runtime_;
  kvstore::KvStore& store_;
  KvServer& server_;
  ControlLink* link_;
  ControlBoard& board_;
  GroupWatch* watch_;
  const GroupOptions& options_;
  const Clock& clock_;
  std::unique_ptr<PageWriter> writer_;  // from run() on

  // Rank 0 only:
  RequestInbox inbox_;
  TimePoint running_deadline_;
  double attention_imbalance_ = 1;           // of the last prompt
  const std::atomic<bool>* stop_ = nullptr;  // from run() on
  bool drain_announced_ = false;
  std::optional<TimePoint> drain_deadline_;  // from when nothing runs any more
};

}  // namespace millrace::worker
