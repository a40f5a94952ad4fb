#include "worker/events/held_pages.h"

#include <algorithm>

#include "common/check.h"
#include "common/page_tokens.h"

namespace millrace::worker {

std::vector<KvEvent> HeldPages::add(const CachedChain& chain) {
  const auto num_pages = std::ssize(chain.keys);
  MR_CHECK(std::ssize(chain.owners) == num_pages &&
               std::ssize(chain.token_ids) >= num_pages * kPageTokens,
           "a chain with owners and tokens of all its pages");
  std::vector<KvEvent> events;
  BlocksStored* open = nullptr;  // the event that the next page continues
  std::optional<BlockHash> parent;
  for (int64_t page = 0; page < num_pages; ++page) {
    const auto place = static_cast<size_t>(page);
    const BlockHash hash = block_hash(chain.keys[place]);
    if (!add(hash, chain.owners[place])) {
      open = nullptr;
    } else {
      if (open == nullptr || std::ssize(open->hashes) == kMaxStored) {
        open = &std::get<BlocksStored>(events.emplace_back(BlocksStored{
            .parent = parent, .cache_salt = parent ? std::string() : chain.cache_salt}));
      }
      open->hashes.push_back(hash);
      const auto tokens = chain.token_ids.subspan(place * kPageTokens, kPageTokens);
      open->token_ids.insert(open->token_ids.end(), tokens.begin(), tokens.end());
    }
    parent = hash;
  }
  return events;
}

bool HeldPages::add(BlockHash hash, int owner) {
  auto& owners = owners_[hash];
  const bool is_new = owners.empty();
  if (std::ranges::find(owners, owner) == owners.end()) owners.push_back(owner);
  return is_new;
}

std::vector<KvEvent> HeldPages::remove(std::span<const std::vector<BlockHash>> gone) {
  std::vector<KvEvent> events;
  BlocksRemoved* open = nullptr;
  for (size_t rank = 0; rank < gone.size(); ++rank) {
    const int owner = static_cast<int>(rank) / num_tp_ranks_;
    for (const BlockHash hash : gone[rank]) {
      const auto held = owners_.find(hash);
      if (held == owners_.end()) continue;
      std::erase(held->second, owner);
      if (!held->second.empty()) continue;
      owners_.erase(held);
      if (open == nullptr || std::ssize(open->hashes) == kMaxRemoved) {
        open = &std::get<BlocksRemoved>(events.emplace_back(BlocksRemoved{}));
      }
      open->hashes.push_back(hash);
    }
  }
  return events;
}

}  // namespace millrace::worker
