// SPDX-License-Identifier: Apache-2.0
// Ranks on one machine share its cores and its devices: each takes its part, and none oversubscribes.
#pragma once

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::engine {

struct CoreShare {
  int ranks_here = 1;   // ranks of the group on this machine
  int local_rank = 0;   // this rank's number among them
  int first_rank = 0;   // the first of them, by its rank in the group
  int num_threads = 1;  // cores this process may use, divided by ranks_here, at least 1
};

// Collective: ranks recognise each other by host name.
Result<CoreShare> core_share(comm::Communicator& world, Deadline deadline);

// Collective: the number of ranks, this one included, on the device that `own` describes. Compares
// host name and device id, because a launcher may show each process only one GPU, which is then
// number 0 to all of them.
Result<int> num_ranks_on_device(comm::Communicator& world, const kernels::DeviceInfo& own,
                                Deadline deadline);

}  // namespace millrace::engine
