// A whole worker group in the test process: ranks as threads with stores, KV servers and
// GroupService, behind a ScriptedLink.
#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/local/local_transport.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/worker/control/scripted_link.h"
#include "tests/unit/worker/ranks/rank_threads.h"
#include "worker/group/group_service.h"

namespace millrace::test {

// The clock of a group, and how far this rank's is ahead of it.
class RankClock final : public Clock {
 public:
  explicit RankClock(const Clock& group) : group_(group) {}
  TimePoint now() const override { return group_.now() + Duration(ahead_.load()); }
  void advance(Duration by) { ahead_.fetch_add(by.count()); }

 private:
  const Clock& group_;
  std::atomic<Duration::rep> ahead_{0};
};

class RunningGroup {
 public:
  struct Options {
    std::string model_directory;
    worker::GridShape grid{1, 2};
    int64_t device_pages = 16;
    int64_t host_pages = 48;
    Duration layer_timeout = std::chrono::seconds(60);
    Duration drain_timeout = std::chrono::minutes(10);
  };

  explicit RunningGroup(Options options)
      : options_(std::move(options)),
        outcomes_(static_cast<size_t>(num_ranks()), Error(Errc::kInternal, "did not run")) {
    for (int rank = 0; rank < num_ranks(); ++rank) rank_clocks_.emplace_back(clock_);
  }
  ~RunningGroup() {
    clock_.advance(std::chrono::hours(24));  // past every lease: a drain has nothing to wait for
    stop();
    link_.hurry();
  }

  // Scripts are set up before.
  void start() {
    ended_ = std::async(std::launch::async, [this] {
      run_ranks(num_ranks(),
                [this](std::unique_ptr<comm::Communicator> world) { serve(std::move(world)); });
    });
  }
  // As SIGTERM does.
  void stop() { stop_.store(true); }
  // Each rank's outcome; waits for the group's end.
  const std::vector<Result<void>>& outcomes() {
    ended_.wait();
    return outcomes_;
  }

  ScriptedLink& link() { return link_; }
  comm::LocalTransport& transport() { return transport_; }
  ::millrace::testing::FakeClock& clock() { return clock_; }
  RankClock& clock_of(int rank) { return rank_clocks_[static_cast<size_t>(rank)]; }
  worker::ControlBoard& board() { return board_; }

 private:
  int num_ranks() const { return options_.grid.tp * options_.grid.cp; }

  void serve(std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    outcomes_[rank] = run(std::move(world));
  }

  Result<void> run(std::unique_ptr<comm::Communicator> world) {
    const bool root = world->rank() == 0;
    const RankClock& clock = clock_of(world->rank());
    MR_ASSIGN_OR_RETURN(
        auto runtime, worker::RankRuntime::create(
                          std::move(world), rank_options(options_.model_directory, options_.grid)));
    const auto& weights = runtime->weights();
    const kvstore::KvGeometry geometry{.num_layers = weights.config.num_layers,
                                       .num_kv_heads = weights.shard.num_kv_heads,
                                       .first_kv_head = weights.shard.first_kv_head,
                                       .head_dim = weights.config.head_dim};
    MR_ASSIGN_OR_RETURN(
        const auto store,
        kvstore::make_kv_store(
            {.device_bytes = options_.device_pages * geometry.page_bytes(),
             .host_bytes = options_.host_pages * geometry.page_bytes() +
                           (options_.device_pages + options_.host_pages) * geometry.record_bytes(),
             .geometry = geometry},
            clock));
    MR_ASSIGN_OR_RETURN(const auto server,
                        worker::KvServer::start(transport_, *store, "epoch-1", "127.0.0.1", 0));
    const worker::GroupOptions group{.epoch = "epoch-1",
                                     .head_plan = "dense",
                                     .layer_timeout = options_.layer_timeout,
                                     .drain_timeout = options_.drain_timeout};
    worker::GroupService service(*runtime, *store, *server, root ? &link_ : nullptr, board_,
                                 /*watch=*/nullptr, group, clock);
    return service.run(stop_);
  }

  const Options options_;
  ::millrace::testing::FakeClock clock_;
  std::deque<RankClock> rank_clocks_;
  comm::LocalTransport transport_;
  ScriptedLink link_;
  worker::ControlBoard board_{clock_};
  std::atomic<bool> stop_ = false;
  std::vector<Result<void>> outcomes_;
  std::future<void> ended_;  // last: its destructor waits for the threads that use the rest
};

}  // namespace millrace::test
