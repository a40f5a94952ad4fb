// SPDX-License-Identifier: Apache-2.0
// Ranks that compute on one device; each may use only its part of the device.
#pragma once

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::worker {

// Collective: the number of ranks, this one included, on the device that `own` describes. Compares
// host name and device id, because a launcher may show each process only one GPU, which is then
// number 0 to all of them.
Result<int> num_ranks_on_device(comm::Communicator& world, const kernels::DeviceInfo& own,
                                Deadline deadline);

}  // namespace millrace::worker
