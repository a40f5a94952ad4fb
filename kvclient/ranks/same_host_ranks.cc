// SPDX-License-Identifier: Apache-2.0
#include "kvclient/ranks/same_host_ranks.h"

#include "common/log.h"

namespace millrace::kvclient {

void SameHostRanks::learn(const std::string& address, const std::string& socket) {
  const std::lock_guard lock(mutex_);
  Rank& rank = ranks_[address];
  if (rank.socket != socket) rank = {.socket = socket};
}

std::string SameHostRanks::socket_of(const std::string& address) const {
  const std::lock_guard lock(mutex_);
  const auto known = ranks_.find(address);
  return known == ranks_.end() || known->second.given_up ? "" : known->second.socket;
}

void SameHostRanks::give_up(const std::string& address, const std::string& socket,
                            const Error& why) {
  const std::lock_guard lock(mutex_);
  Rank& rank = ranks_[address];
  if (rank.socket != socket || rank.given_up) return;
  rank.given_up = true;
  // A rank on another host is the usual case.
  const auto level = why.code == Errc::kPeerLost ? log::Level::kDebug : log::Level::kInfo;
  log::at(level, "pages of {} come over the transport, not from its memory: {}", address,
          why.message);
}

Result<std::shared_ptr<const SameHostRanks::Pools>> SameHostRanks::map(
    const std::string& socket, const std::vector<FileDescriptor>& descriptors) {
  const std::lock_guard lock(mutex_);
  std::erase_if(mapped_, [](const auto& entry) { return entry.second.expired(); });
  auto& known = mapped_[socket];
  if (auto pools = known.lock()) return pools;
  auto pools = std::make_shared<Pools>();
  for (const auto& descriptor : descriptors) {
    MR_ASSIGN_OR_RETURN(auto view, SharedMemoryView::map(descriptor));
    pools->push_back(std::move(view));
  }
  known = pools;
  return std::shared_ptr<const Pools>(std::move(pools));
}

}  // namespace millrace::kvclient
