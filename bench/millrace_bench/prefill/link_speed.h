// What a rank receives a second in collectives of one of its groups while nothing else goes on.
#pragma once

#include <cstdint>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::bench {

// As CommStats counts bytes and seconds; 0 in a group of one.
struct LinkSpeed {
  double all_gather_gbytes_per_s = 0;
  double all_reduce_gbytes_per_s = 0;
};

// Collective over `group`. `bytes`: what is gathered from all ranks, or summed.
Result<LinkSpeed> measure_link(kernels::Device& device, comm::DeviceCommunicator& group,
                               int64_t bytes);

}  // namespace millrace::bench
