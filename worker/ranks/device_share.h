// Ranks that compute on one device, which each may use for its part only.
#pragma once

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::worker {

// Collective. This rank and the others with the device that `own` describes. By host name and the
// device's id: a launcher may show each process one GPU, which is number 0 to all of them.
Result<int> num_ranks_on_device(comm::Communicator& world, const kernels::DeviceInfo& own,
                                Deadline deadline);

}  // namespace millrace::worker
