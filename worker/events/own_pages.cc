// SPDX-License-Identifier: Apache-2.0
#include "worker/events/own_pages.h"

#include <utility>

namespace millrace::worker {

void OwnPages::add(std::span<const PageContentKey> keys) {
  pages_.insert(keys.begin(), keys.end());
  new_.insert(new_.end(), keys.begin(), keys.end());
}

std::vector<BlockHash> OwnPages::take_gone(int64_t num_given_up, const FindPages& find) {
  std::vector<PageContentKey> looked_at = std::exchange(new_, {});
  if (std::exchange(num_given_up_, num_given_up) != num_given_up) {
    looked_at.assign(pages_.begin(), pages_.end());
  }
  std::vector<BlockHash> gone;
  if (looked_at.empty()) return gone;
  const auto found = find(looked_at);
  for (size_t i = 0; i < looked_at.size(); ++i) {
    if (!found[i] && pages_.erase(looked_at[i]) > 0) gone.push_back(block_hash(looked_at[i]));
  }
  return gone;
}

}  // namespace millrace::worker
