// SPDX-License-Identifier: Apache-2.0
// A process's membership in an MPI job, from MPI_Init to MPI_Finalize. All of MPI_COMM_WORLD
// belongs to the session: nothing else in the process may send on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "comm/api/communicator.h"

namespace millrace::comm {

struct MpiOptions {
  // Larger transfers are split, because MPI counts are 32-bit.
  int64_t max_message_bytes = int64_t{1} << 30;
};

class MpiSession {
 public:
  // Throws std::runtime_error if MPI cannot serve several threads.
  MpiSession(int& argc, char**& argv);
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  // MPI_Finalize waits for all ranks, without a deadline. So it is skipped once a communicator has
  // broken: the process can still exit, and mpirun ends the other ranks.
  ~MpiSession();

  // All ranks of the job. All ranks must make their n-th call alike, but nothing is sent.
  // Communicators must not be used after the session's end.
  std::unique_ptr<Communicator> world(MpiOptions options = {});

  bool broken() const { return broken_->load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<std::atomic<bool>> broken_;
  Duration awake_;  // of waiting ranks (backoff.h)
  int num_worlds_ = 0;
};

}  // namespace millrace::comm
