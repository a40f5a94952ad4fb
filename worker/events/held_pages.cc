// SPDX-License-Identifier: Apache-2.0
#include "worker/events/held_pages.h"

#include <algorithm>

#include "common/check.h"
#include "common/page_tokens.h"

namespace millrace::worker {

namespace {

struct NewPage {
  BlockHash hash = 0;
  std::optional<BlockHash> parent;
  std::span<const int32_t> token_ids;
  const std::string& cache_salt;  // used where there is no parent
};

// Appends to the last event if the page follows that event's last page.
void add_stored(std::vector<KvEvent>& events, const NewPage& page) {
  auto* open = events.empty() ? nullptr : std::get_if<BlocksStored>(&events.back());
  if (open == nullptr || page.parent != open->hashes.back() ||
      std::ssize(open->hashes) == HeldPages::kMaxStored) {
    open = &std::get<BlocksStored>(events.emplace_back(BlocksStored{
        .parent = page.parent, .cache_salt = page.parent ? std::string() : page.cache_salt}));
  }
  open->hashes.push_back(page.hash);
  open->token_ids.insert(open->token_ids.end(), page.token_ids.begin(), page.token_ids.end());
}

}  // namespace

std::vector<KvEvent> HeldPages::add(const CachedChain& chain) {
  const auto num_pages = std::ssize(chain.keys);
  MR_CHECK(std::ssize(chain.owners) == num_pages &&
               std::ssize(chain.token_ids) >= num_pages * kPageTokens,
           "a chain with owners and tokens of all its pages");
  std::vector<KvEvent> events;
  std::optional<BlockHash> parent;
  for (int64_t page = 0; page < num_pages; ++page) {
    const auto place = static_cast<size_t>(page);
    const BlockHash hash = block_hash(chain.keys[place]);
    if (add(hash, chain.owners[place])) {
      add_stored(events, {.hash = hash,
                          .parent = parent,
                          .token_ids = chain.token_ids.subspan(place * kPageTokens, kPageTokens),
                          .cache_salt = chain.cache_salt});
    }
    parent = hash;
  }
  return events;
}

std::vector<KvEvent> HeldPages::restore(std::span<const StoredPage> pages,
                                        std::span<const std::vector<int>> owners) {
  std::vector<KvEvent> events;
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto& page = pages[i];
    const BlockHash hash = block_hash(page.key);
    owners_[hash] = owners[i];
    add_stored(events,
               {.hash = hash,
                .parent = page.parent ? std::optional(block_hash(*page.parent)) : std::nullopt,
                .token_ids = page.token_ids,
                .cache_salt = page.cache_salt});
  }
  return events;
}

std::unordered_set<BlockHash> HeldPages::all() const {
  std::unordered_set<BlockHash> hashes;
  for (const auto& [hash, owners] : owners_) hashes.insert(hash);
  return hashes;
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
