// SPDX-License-Identifier: Apache-2.0
// Ends a rank whose group is broken, whatever its engine is busy with. MPI and NCCL do not: a peer
// of a killed process waits in its collective, and a GPU that waits for a peer blocks the next call
// that needs the device, even one that frees memory.
//
// Every rank has a TCP connection to rank 0, with heartbeats in both directions.
// - The kernel closes a dead process's connections, and rank 0 sees that; when rank 0 ends because
//   of it, the others see that. A host that vanishes without closing anything is found within about
//   5 s.
// - A process that hangs sends no heartbeats. That alone ends nothing, because a machine may be
//   busy; it tells which rank the others waited for.
// - The engine's thread says how long its next step may take. A rank that exceeds this is stuck.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/api/communicator.h"
#include "common/clock.h"
#include "common/result.h"
#include "engine/ranks/rank_end.h"
#include "worker/sync/watch_socket.h"

namespace millrace::worker {

class RankWatch {
 public:
  // `end_process` is called once, on the watch's own thread, with kPeerLost and the reason.
  //
  // Collective over `world`. `host`: where rank 0 listens and the others reach it; rank 0's value
  // counts. `epoch`: the group's id, which distinguishes ranks from strangers.
  static Result<std::unique_ptr<RankWatch>> start(comm::Communicator& world,
                                                  const std::string& host, const std::string& epoch,
                                                  engine::EndHandler end_process,
                                                  Deadline deadline);
  // Watches this process alone: it hears from nobody, and ends when a step takes too long.
  static Result<std::unique_ptr<RankWatch>> alone(engine::EndHandler end_process);
  // Without leave(), the other ranks treat this one as lost.
  ~RankWatch();

  // From here on the engine's thread is at `step`. It calls again within `allowed`, or this rank is
  // stuck. The last call counts.
  void expect_step(const std::string& step, Duration allowed);
  // The same for a step in which this rank waits for what others do on their own, which may take
  // long; but it does not wait for a rank that is silent for `silence`.
  void expect_step(const std::string& step, Duration allowed, Duration silence);
  // The engine's thread waits for somebody outside the group, who may take any time.
  void expect_nothing();
  // "rank 3 silent for 2.4 s": the ranks whose heartbeats are missing, or were missing in this
  // step; empty when there are none. Rank 0 hears all ranks, the others hear rank 0.
  std::string silent_ranks() const;

  // This rank is about to end because the group is broken. Rank 0, which can tell the coordinator,
  // gets a moment to do so before this rank's end makes mpirun end all.
  void give_up();
  // This rank ends in good order and ignores the others' end from here on.
  void leave();

 private:
  struct Peer {
    int rank = 0;
    WatchSocket socket;
    bool here = true;  // neither left nor ended
    TimePoint received_at = Clock::steady().now();
    bool warned = false;  // of its silence
    Duration pause{};     // a long one between its heartbeats in this step
  };
  // Why and when this rank ends.
  struct End {
    std::string why;
    Deadline due;
  };
  explicit RankWatch(engine::EndHandler end_process) : end_process_(std::move(end_process)) {}

  Result<void> run();
  void watch();
  bool is_root() const { return peers_.empty() || peers_.front().rank != 0; }
  bool wait_for_words(Deadline longest);
  void receive(Peer& peer);
  void end_within(Duration duration, std::string why);
  std::optional<End> due_end() const;
  std::optional<End> too_silent() const;
  void warn_of_silence();
  void say(char word);

  const engine::EndHandler end_process_;
  std::vector<Peer> peers_;
  int wake_ = -1;  // eventfd: ends the thread

  mutable std::mutex mutex_;  // guards what follows, and what changes in peers_
  std::optional<End> stuck_;
  std::optional<Duration> longest_silence_;  // of another rank, in this step
  std::optional<End> broken_;
  std::jthread thread_;
};

}  // namespace millrace::worker
