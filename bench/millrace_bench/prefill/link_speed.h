// SPDX-License-Identifier: Apache-2.0
// What a rank receives per second in collectives of one of its groups while nothing else runs.
#pragma once

#include <cstdint>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::bench {

// Bytes and seconds as CommStats counts them; 0 in a group of one rank.
struct LinkSpeed {
  double all_gather_gbytes_per_s = 0;
  double all_reduce_gbytes_per_s = 0;
};

// Collective over `group`. `bytes`: the size gathered from all ranks, or summed.
Result<LinkSpeed> measure_link(kernels::Device& device, comm::DeviceCommunicator& group,
                               int64_t bytes);

}  // namespace millrace::bench
