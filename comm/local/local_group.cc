// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_group.h"

#include <numeric>

#include "comm/local/local_communicator.h"
#include "common/check.h"

namespace millrace::comm {

std::vector<std::unique_ptr<Communicator>> LocalGroup::create(int num_ranks) {
  MR_CHECK(num_ranks > 0, "a group of {} ranks", num_ranks);
  std::vector<int> members(static_cast<size_t>(num_ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto exchange =
      std::make_shared<LocalExchange>(std::make_shared<LocalHub>(num_ranks), std::move(members));

  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(std::make_unique<LocalCommunicator>(exchange, rank));
  }
  return ranks;
}

}  // namespace millrace::comm
