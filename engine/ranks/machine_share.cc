// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/machine_share.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "common/system/cpu.h"
#include "engine/ranks/rank_values.h"

namespace millrace::engine {

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

Result<CoreShare> core_share(comm::Communicator& world, Deadline deadline) {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  std::vector<std::array<char, 256>> names(static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(names.size(), int64_t{sizeof(name)});
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(name)),
                                      std::as_writable_bytes(std::span(names)), counts, deadline));
  CoreShare share{.ranks_here = 0};
  for (int rank = 0; rank < world.size(); ++rank) {
    if (std::strcmp(names[static_cast<size_t>(rank)].data(), name.data()) != 0) continue;
    if (share.ranks_here == 0) share.first_rank = rank;
    if (rank < world.rank()) ++share.local_rank;
    ++share.ranks_here;
  }
  share.num_threads = std::max(1, usable_cores() / share.ranks_here);
  return share;
}

}  // namespace millrace::engine
