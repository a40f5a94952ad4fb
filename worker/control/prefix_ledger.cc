// SPDX-License-Identifier: Apache-2.0
#include "worker/control/prefix_ledger.h"

#include <algorithm>
#include <utility>

#include "common/content/prefix_keys.h"
#include "common/log.h"
#include "common/page_tokens.h"

namespace millrace::worker {

protocol::CachedPrefixes PrefixLedger::keep_in(LedgerFile file, const FindPages& find) {
  protocol::CachedPrefixes change;
  auto kept = file.read();
  writer_.emplace(std::move(file));
  if (!kept.ok()) {
    give_up(kept.error());
    return change;
  }
  std::vector<PageContentKey> pages;
  for (const auto& entry : kept->entries) pages.push_back(entry.page);
  const std::vector<bool> found = find(pages);
  for (size_t i = 0; i < pages.size() && deepest_.size() < kMaxPrefixKeys; ++i) {
    if (!found[i]) continue;
    const auto [known, is_new] = deepest_.insert_or_assign(kept->entries[i].stored_key, pages[i]);
    if (is_new) change.add_added(known->first);
  }
  if (change.added().empty()) kept->origins.Clear();
  *change.mutable_origins() = kept->origins.origins();
  auto whole = all();
  whole.origins = std::move(kept->origins);
  writer_->replace(std::move(whole));
  return change;
}

void PrefixLedger::keep(const protocol::CachedPrefixes& added) {
  if (!writer_ || added.added().empty()) return;
  if (const auto failure = writer_->take_failure()) return give_up(*failure);
  LedgerRecord record;
  for (const uint64_t key : added.added()) {
    const auto known = deepest_.find(key);
    if (known != deepest_.end()) record.entries.push_back({key, known->second});
  }
  *record.origins.mutable_origins() = added.origins();
  // all() leaves out the origins: a coordinator learns them again from the prompts that come.
  const bool is_taken = is_behind_ || writer_->is_long() ? writer_->replace(all())
                                                         : writer_->append(std::move(record));
  if (!is_taken && !is_behind_) {
    log::warn("{} records of kept prefixes wait for the disk: those that come are left out",
              LedgerWriter::kMostWaiting);
  }
  is_behind_ = !is_taken;
}

LedgerRecord PrefixLedger::all() const {
  LedgerRecord record;
  for (const auto& [key, page] : deepest_) record.entries.push_back({key, page});
  return record;
}

void PrefixLedger::give_up(const Error& failure) {
  log::warn("which prefixes are kept is not told at the next start, only found: {}",
            failure.to_string());
  writer_.reset();
}

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
