// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/cache_log.h"

namespace millrace::kvstore {

namespace {

int64_t num_pages_of(const CacheChange& change) {
  return change.prompt == nullptr ? 1 : 1 + std::ssize(change.prompt->page_keys);
}

}  // namespace

void CacheLog::remembered(std::shared_ptr<const CachedPrompt> prompt) {
  append({.kind = CacheChange::Kind::kPrompt, .key = {}, .prompt = std::move(prompt)});
}

std::optional<CacheNews> CacheLog::read(int64_t from) const {
  if (from < first_) return std::nullopt;
  return CacheNews{.changes = {changes_.begin() + (from - first_), changes_.end()}, .end = end()};
}

void CacheLog::append_unless_kept(CacheChange::Kind kind, const PageContentKey& key) {
  if (is_kept_ == nullptr || !is_kept_(key)) append({.kind = kind, .key = key});
}

// The last one stays, however long its prompt is.
void CacheLog::append(CacheChange change) {
  num_pages_ += num_pages_of(change);
  changes_.push_back(std::move(change));
  while (num_pages_ > most_pages_ && changes_.size() > 1) {
    num_pages_ -= num_pages_of(changes_.front());
    changes_.pop_front();
    ++first_;
  }
}

}  // namespace millrace::kvstore
