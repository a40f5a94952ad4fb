// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: a Communicator without MPI, for tests and for running a grid of
// ranks in one program.
#pragma once

#include <memory>
#include <vector>

#include "comm/api/communicator.h"

namespace millrace::comm {

class LocalGroup {
 public:
  // One communicator for each rank, rank 0 first; hand each to its own thread. A rank whose
  // communicator is destroyed, aborted or out of time makes the other ranks' calls fail with
  // kPeerLost.
  static std::vector<std::unique_ptr<Communicator>> create(int num_ranks);
};

}  // namespace millrace::comm
