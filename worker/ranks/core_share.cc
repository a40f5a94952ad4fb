// SPDX-License-Identifier: Apache-2.0
#include "worker/ranks/core_share.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "common/system/usable_cores.h"

namespace millrace::worker {

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

}  // namespace millrace::worker
