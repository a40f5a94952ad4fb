// Tells the ranks of a group that one of them died, whatever they are busy with. MPI does not: a
// peer of a killed process waits in its collective until the deadline of a whole layer.
//
// A TCP connection from every rank to rank 0. The kernel closes a dead process's connections, which
// rank 0 sees; when rank 0 ends for it, the others see that. A host that vanishes without closing
// anything is found by keep-alive probes, within about 5 s.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"

namespace millrace::worker {

class GroupWatch {
 public:
  // Called once, on the watch's own thread, with the first rank that was lost.
  using OnLost = std::function<void(int rank)>;

  // Collective over `world`. `host`: where rank 0 listens and the others reach it; rank 0's counts.
  // `epoch`: the group's id, by which strangers are told from ranks.
  static Result<std::unique_ptr<GroupWatch>> start(comm::Communicator& world,
                                                   const std::string& host,
                                                   const std::string& epoch, OnLost on_lost,
                                                   Deadline deadline);
  // Without leave() the other ranks take this one for lost.
  ~GroupWatch();

  // This rank ends in good order, and no longer minds the others' end.
  void leave();

 private:
  struct Peer {
    int rank = 0;
    int socket = -1;
  };
  explicit GroupWatch(OnLost on_lost) : on_lost_(std::move(on_lost)) {}

  Result<void> accept_ranks(int listener, int num_ranks, const std::string& epoch,
                            Deadline deadline);
  Result<void> run();
  void watch();

  const OnLost on_lost_;
  std::vector<Peer> peers_;
  int wake_ = -1;  // eventfd: ends the thread
  std::jthread thread_;
};

}  // namespace millrace::worker
