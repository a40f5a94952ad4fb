#include "worker/control/prefix_ledger.h"

#include <algorithm>

#include "common/content/prefix_keys.h"
#include "common/page_tokens.h"

namespace millrace::worker {

protocol::CachedPrefixes PrefixLedger::add(const RememberedPrompt& prompt) {
  constexpr int64_t kPagesPerKey = kPrefixKeyTokens / kPageTokens;
  protocol::CachedPrefixes change;
  const int64_t num_keys =
      std::min(std::ssize(prompt.prefix_keys), std::ssize(prompt.page_keys) / kPagesPerKey);
  for (int64_t i = 0; i < num_keys; ++i) {
    const auto behind = std::ranges::lower_bound(prompt.own_pages, (i + 1) * kPagesPerKey);
    if (behind == prompt.own_pages.begin()) continue;
    const uint64_t key =
        stored_prefix_key(prompt.prefix_keys[static_cast<size_t>(i)], prompt.origin, prompt.tenant);
    const auto known = deepest_.find(key);
    if (known == deepest_.end() && deepest_.size() == kMaxPrefixKeys) break;
    deepest_[key] = prompt.page_keys[static_cast<size_t>(*std::prev(behind))];
    if (known == deepest_.end()) change.add_added(key);
  }
  return change;
}

protocol::CachedPrefixes PrefixLedger::sweep(int64_t num_given_up, const FindPages& find) {
  protocol::CachedPrefixes change;
  if (std::exchange(num_given_up_, num_given_up) == num_given_up) return change;
  std::vector<uint64_t> keys;
  std::vector<PageContentKey> pages;
  for (const auto& [key, page] : deepest_) {
    keys.push_back(key);
    pages.push_back(page);
  }
  const std::vector<bool> found = find(pages);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i]) continue;
    change.add_gone(keys[i]);
    deepest_.erase(keys[i]);
  }
  return change;
}

}  // namespace millrace::worker
