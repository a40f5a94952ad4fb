// SPDX-License-Identifier: Apache-2.0
// A set of sends and receives that are posted together and then waited for with a deadline.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/mpi/mpi_family.h"
#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

// Both sides know every size, so empty transfers are not posted, and transfers above the family's
// max_message_bytes go as several messages (MPI counts are 32-bit). One tag is enough: MPI keeps
// the order of messages between two processes.
class MpiTransfers {
 public:
  MpiTransfers(MpiFamily& family, int tag) : family_(family), tag_(tag) {}
  MpiTransfers(const MpiTransfers&) = delete;
  MpiTransfers& operator=(const MpiTransfers&) = delete;
  ~MpiTransfers();

  // `process` is a rank of MPI_COMM_WORLD.
  void send(int process, std::span<const std::byte> data);
  void receive(int process, std::span<std::byte> data);

  // Waits for all of them. After an error, receives are cancelled. Transfers that MPI is in the
  // middle of cannot be cancelled; the family is told of them.
  Result<void> wait(Deadline deadline);

 private:
  Result<void> poll_until_done(Deadline deadline);
  // How long to go on yielding (backoff.h).
  Duration awake() const;
  void give_up();

  MpiFamily& family_;
  const int tag_;
  int post_status_ = MPI_SUCCESS;
  std::vector<MPI_Request> sends_and_receives_;
  std::vector<bool> is_receive_;
  size_t num_bytes_ = 0;
};

}  // namespace millrace::comm
