// SPDX-License-Identifier: Apache-2.0
#include "worker/ranks/device_share.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/check.h"
#include "worker/ranks/rank_values.h"

namespace millrace::worker {

namespace {

struct Place {
  std::array<char, 256> host = {};
  std::array<char, 64> device = {};

  bool operator==(const Place&) const = default;
};

}  // namespace

Result<int> num_ranks_on_device(comm::Communicator& world, const kernels::DeviceInfo& own,
                                Deadline deadline) {
  Place place;
  gethostname(place.host.data(), place.host.size() - 1);
  MR_CHECK(own.id.size() < place.device.size(), "device id of {} characters", own.id.size());
  std::ranges::copy(own.id, place.device.begin());
  MR_ASSIGN_OR_RETURN(const auto places, gather_values(world, place, deadline));
  return static_cast<int>(std::ranges::count(places, place));
}

}  // namespace millrace::worker
