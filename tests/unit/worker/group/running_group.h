// SPDX-License-Identifier: Apache-2.0
// A whole worker group in the test process, behind a ScriptedLink. Its ranks are threads, and each
// is put together as millrace-worker puts together its rank (GroupRank).
#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/local/local_transport.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/worker/control/scripted_link.h"
#include "worker/group/group_rank.h"

namespace millrace::test {

// The group's clock, plus how far this rank's clock is ahead of it.
class RankClock final : public Clock {
 public:
  explicit RankClock(const Clock& group) : group_(group) {}
  TimePoint now() const override {
    return group_.now() + Duration(ahead_.fetch_add(per_look_.load()));
  }
  void advance(Duration by) { ahead_.fetch_add(by.count()); }
  // From here on, the clock advances each time it is read, so that whatever is measured seems to
  // take long.
  void advance_per_look(Duration by) { per_look_.store(by.count()); }

 private:
  const Clock& group_;
  mutable std::atomic<Duration::rep> ahead_{0};
  std::atomic<Duration::rep> per_look_{0};
};

// A group's link to the ScriptedLink that the test holds.
class SharedLink final : public worker::ControlLink {
 public:
  explicit SharedLink(worker::ControlLink& link) : link_(link) {}
  std::optional<worker::ControlEvent> wait(Deadline deadline) override {
    return link_.wait(deadline);
  }
  Result<void> send(const protocol::Envelope& envelope) override { return link_.send(envelope); }

 private:
  worker::ControlLink& link_;
};

class RunningGroup {
 public:
  struct Options {
    std::string model_directory;
    engine::GridShape grid{1, 2};
    std::string served_model_name;
    bool float8_kv = false;
    int64_t device_pages = 16;
    int64_t host_pages = 48;
    int64_t disk_pages = 0;
    std::string disk_directory;
    int64_t kept_bytes = 0;  // of each rank
    int64_t max_preempting_tokens = 0;
    int64_t side_by_side_tokens = 0;
    bool shares_memory = false;
    Duration layer_timeout = std::chrono::seconds(60);
    Duration drain_timeout = std::chrono::minutes(10);
    worker::OpenEvents open_events = nullptr;
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

  // Set up scripts before.
  void start() {
    ended_ = std::async(std::launch::async, [this] {
      run_ranks(num_ranks(),
                [this](std::unique_ptr<comm::Communicator> world) { serve(std::move(world)); });
    });
  }
  // Stops the group as SIGTERM does.
  void stop() { stop_.store(true); }
  // Each rank's outcome; waits for the group to end.
  const std::vector<Result<void>>& outcomes() {
    ended_.wait();
    return outcomes_;
  }

  ScriptedLink& link() { return link_; }
  comm::LocalTransport& transport() { return transport_; }
  ::millrace::testing::FakeClock& clock() { return clock_; }
  RankClock& clock_of(int rank) { return rank_clocks_[static_cast<size_t>(rank)]; }
  // Valid once the group has sent something.
  worker::ControlBoard& board() { return *board_; }
  const protocol::Register& description() const { return description_; }

 private:
  int num_ranks() const { return options_.grid.tp * options_.grid.cp; }

  void serve(std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    outcomes_[rank] = run(std::move(world));
  }

  Result<void> run(std::unique_ptr<comm::Communicator> world) {
    const RankClock& clock = clock_of(world->rank());
    const auto connect = [this](protocol::Register description, worker::ControlBoard& board) {
      description_ = std::move(description);
      board_ = &board;
      return std::make_unique<SharedLink>(link_);
    };
    MR_ASSIGN_OR_RETURN(const auto rank,
                        worker::GroupRank::start(std::move(world), rank_options(),
                                                 {.transport = transport_,
                                                  .connect = connect,
                                                  .clock = clock,
                                                  .open_events = options_.open_events}));
    return rank->serve(stop_);
  }

  worker::GroupRankOptions rank_options() const {
    // One kv head: pages are the tiny model's, in float32.
    const kvstore::KvGeometry page{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16};
    const int64_t num_pages = options_.device_pages + options_.host_pages + options_.disk_pages;
    worker::GroupRankOptions made{
        .rank = test::rank_options(options_.model_directory, options_.grid),
        .group = {.epoch = "epoch-1",
                  .head_plan = "dense",
                  .max_preempting_tokens = options_.max_preempting_tokens,
                  .layer_timeout = options_.layer_timeout,
                  .drain_timeout = options_.drain_timeout},
        .pools = {
            .host_bytes = options_.host_pages * page.page_bytes() + num_pages * page.record_bytes(),
            .disk_bytes = options_.disk_pages * page.page_bytes(),
            .disk_directory = options_.disk_directory,
            .kept_bytes = options_.kept_bytes}};
    made.pools.shares_memory = options_.shares_memory;
    made.rank.float8_kv = options_.float8_kv;
    made.rank.served_model_name = options_.served_model_name;
    made.rank.side_by_side_tokens = options_.side_by_side_tokens;
    made.rank.device_pool_bytes = options_.device_pages * page.page_bytes();
    return made;
  }

  const Options options_;
  ::millrace::testing::FakeClock clock_;
  std::deque<RankClock> rank_clocks_;
  comm::LocalTransport transport_;
  ScriptedLink link_;
  // Rank 0's, set when it starts.
  protocol::Register description_;
  worker::ControlBoard* board_ = nullptr;
  std::atomic<bool> stop_ = false;
  std::vector<Result<void>> outcomes_;
  std::future<void> ended_;  // last: its destructor waits for the threads that use the rest
};

}  // namespace millrace::test
