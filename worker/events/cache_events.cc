// SPDX-License-Identifier: Apache-2.0
#include "worker/events/cache_events.h"

#include <algorithm>
#include <cstddef>

namespace millrace::worker {

namespace {

// The pages of `chain` that are not held yet.
std::vector<StoredPage> new_pages(const CachedChain& chain, const HeldPages& held) {
  std::vector<StoredPage> pages;
  for (size_t i = 0; i < chain.keys.size(); ++i) {
    if (held.holds(chain.keys[i])) continue;
    auto& page = pages.emplace_back();
    page.key = chain.keys[i];
    if (i > 0) page.parent = chain.keys[i - 1];
    if (i == 0) page.cache_salt = chain.cache_salt;
    const auto tokens = chain.token_ids.subspan(i * page.token_ids.size(), page.token_ids.size());
    std::ranges::copy(tokens, page.token_ids.begin());
  }
  return pages;
}

}  // namespace

void CacheEvents::start_with(std::vector<StoredPage> pages,
                             std::span<const std::vector<int>> owners, JournalFile journal) {
  publisher_->publish_start(held_.restore(pages, owners));
  journal_.emplace(std::move(journal));
  journal_->begin_with(std::move(pages));
}

void CacheEvents::stored(const CachedChain& chain) {
  auto added = journal_ ? new_pages(chain, held_) : std::vector<StoredPage>();
  publisher_->publish(held_.add(chain));
  if (journal_) journal_->add(std::move(added), [this] { return held_.all(); });
}

}  // namespace millrace::worker
