// SPDX-License-Identifier: Apache-2.0
#include "worker/events/held_pages.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/content/prefix_keys.h"
#include "common/page_tokens.h"

namespace millrace::worker {

namespace {

constexpr int64_t kPagesPerPrefixKey = kPrefixKeyTokens / kPageTokens;

std::optional<BlockHash> hash_of(const std::optional<PageContentKey>& key) {
  return key ? std::optional(block_hash(*key)) : std::nullopt;
}

// Appends to the last event if the page follows that event's last page.
void add_stored(std::vector<KvEvent>& events, const StoredPage& page) {
  const auto parent = hash_of(page.parent);
  auto* open = events.empty() ? nullptr : std::get_if<BlocksStored>(&events.back());
  if (open == nullptr || parent != open->hashes.back() ||
      std::ssize(open->hashes) == HeldPages::kMaxStored) {
    open = &std::get<BlocksStored>(
        events.emplace_back(BlocksStored{.parent = parent, .cache_salt = page.cache_salt}));
  }
  open->hashes.push_back(block_hash(page.key));
  open->token_ids.insert(open->token_ids.end(), page.token_ids.begin(), page.token_ids.end());
}

}  // namespace

HeldChange HeldPages::add(const kvstore::CachedPrompt& prompt) {
  const auto num_pages = std::ssize(prompt.page_keys);
  MR_CHECK(std::ssize(prompt.owners) == num_pages &&
               std::ssize(prompt.token_ids) >= num_pages * kPageTokens,
           "a prompt with owners and tokens of all its cached pages");
  const auto names = prefix_keys(prompt.token_ids);
  HeldChange change;
  StoredPage page;
  for (int64_t number = 0; number < num_pages; ++number) {
    const auto place = static_cast<size_t>(number);
    page.parent = number == 0 ? std::nullopt : std::optional(page.key);
    page.key = prompt.page_keys[place];
    page.cache_salt = number == 0 ? prompt.cache_salt : "";
    page.prefix_key = 0;
    if ((number + 1) % kPagesPerPrefixKey == 0) {
      page.prefix_key = stored_prefix_key(names[static_cast<size_t>(number / kPagesPerPrefixKey)],
                                          prompt.origin, prompt.tenant);
      change.prefixes.push_back(page.prefix_key);
    }
    const BlockHash hash = block_hash(page.key);
    if (!add(hash, hash_of(page.parent), page.prefix_key, prompt.owners[place])) continue;
    set_reached(hash, true, change.prefixes);
    if (has_tokens_) {
      const auto first = prompt.token_ids.begin() + number * kPageTokens;
      page.token_ids.assign(first, first + kPageTokens);
    }
    change.stored.push_back(page);
  }
  return change;
}

HeldChange HeldPages::restore(std::vector<StoredPage> pages,
                              std::span<const std::vector<int>> owners) {
  HeldChange change;
  for (size_t i = 0; i < pages.size(); ++i) {
    const BlockHash hash = block_hash(pages[i].key);
    for (const int owner : owners[i]) {
      add(hash, hash_of(pages[i].parent), pages[i].prefix_key, owner);
    }
    set_reached(hash, true, change.prefixes);
  }
  change.stored = std::move(pages);
  return change;
}

HeldChange HeldPages::remove(std::span<const LostPages> by_rank) {
  HeldChange change;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const int owner = static_cast<int>(rank) / num_tp_ranks_;
    const auto& lost = by_rank[rank];
    if (!lost.are_all_left) {
      for (const BlockHash hash : lost.pages) lose(hash, owner, change);
      continue;
    }
    const std::unordered_set<BlockHash> left(lost.pages.begin(), lost.pages.end());
    for (const BlockHash hash : pages_of(owner)) {
      if (!left.contains(hash)) lose(hash, owner, change);
    }
  }
  return change;
}

std::unordered_set<BlockHash> HeldPages::all() const {
  std::unordered_set<BlockHash> hashes;
  for (const auto& [hash, page] : pages_) hashes.insert(hash);
  return hashes;
}

std::vector<BlockHash> HeldPages::pages_of(int owner) const {
  std::vector<BlockHash> hashes;
  for (const auto& [hash, page] : pages_) {
    if (std::ranges::find(page.owners, owner) != page.owners.end()) hashes.push_back(hash);
  }
  return hashes;
}

bool HeldPages::add(BlockHash hash, std::optional<BlockHash> parent, uint64_t prefix_key,
                    int owner) {
  const auto [found, is_new] =
      pages_.try_emplace(hash, Page{.owners = {}, .parent = parent, .prefix_key = prefix_key});
  auto& owners = found->second.owners;
  if (std::ranges::find(owners, owner) == owners.end()) owners.push_back(owner);
  if (is_new && parent) next_.emplace(*parent, hash);
  return is_new;
}

void HeldPages::set_reached(BlockHash first, bool is_reached, std::vector<uint64_t>& prefixes) {
  std::vector<BlockHash> left = {first};
  while (!left.empty()) {
    const BlockHash hash = left.back();
    left.pop_back();
    Page& page = pages_.at(hash);
    if (std::exchange(page.is_reached, is_reached) == is_reached) continue;
    if (page.prefix_key != 0) prefixes.push_back(page.prefix_key);
    const auto [begin, end] = next_.equal_range(hash);
    for (auto next = begin; next != end; ++next) left.push_back(next->second);
  }
}

void HeldPages::lose(BlockHash hash, int owner, HeldChange& change) {
  const auto found = pages_.find(hash);
  if (found == pages_.end()) return;
  auto& page = found->second;
  std::erase(page.owners, owner);
  if (!page.owners.empty()) return;
  set_reached(hash, false, change.gone_prefixes);
  if (page.parent) {
    const auto [begin, end] = next_.equal_range(*page.parent);
    next_.erase(std::find_if(begin, end, [hash](const auto& next) { return next.second == hash; }));
  }
  pages_.erase(found);
  change.removed.push_back(hash);
}

std::vector<KvEvent> events_of(const HeldChange& change) {
  std::vector<KvEvent> events;
  for (const auto& page : change.stored) add_stored(events, page);
  for (auto left = std::span(change.removed); !left.empty();) {
    const auto some = left.first(std::min<size_t>(left.size(), HeldPages::kMaxRemoved));
    events.emplace_back(BlocksRemoved{.hashes = {some.begin(), some.end()}});
    left = left.subspan(some.size());
  }
  return events;
}

}  // namespace millrace::worker
