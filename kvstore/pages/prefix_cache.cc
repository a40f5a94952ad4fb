#include "kvstore/pages/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/check.h"

namespace millrace::kvstore {

bool PrefixCache::GoesFirst::operator()(const PageColumn* a, const PageColumn* b) const {
  if (a->last_used != b->last_used) return a->last_used < b->last_used;
  if (a->page() != b->page()) return a->page() > b->page();
  return std::less<>()(a, b);
}

PageColumn* PrefixCache::find(const PageContentKey& key) const {
  const auto found = columns_.find(key);
  return found == columns_.end() ? nullptr : found->second.get();
}

void PrefixCache::insert(const PageContentKey& key, PageColumn& column) {
  MR_CHECK(column.num_requests > 0 && !column.content_key, "page {} is held by {} requests",
           column.page(), column.num_requests);
  const bool is_new = columns_.emplace(key, column.shared_from_this()).second;
  MR_CHECK(is_new, "page {} is cached twice", column.page());
  column.content_key = key;
}

void PrefixCache::take(PageColumn& column, int64_t sequence) {
  idle_.erase(&column);
  column.last_used = std::max(column.last_used, sequence);
  ++column.num_requests;
}

bool PrefixCache::let_go(PageColumn& column) {
  MR_CHECK(column.num_requests > 0, "nobody holds page {}", column.page());
  if (--column.num_requests > 0) return false;
  if (!column.content_key) return true;
  idle_.insert(&column);
  return false;
}

void PrefixCache::touch(PageColumn& column, int64_t sequence) {
  take(column, sequence);
  let_go(column);
}

std::shared_ptr<PageColumn> PrefixCache::remove(PageColumn& column) {
  idle_.erase(&column);
  const auto found = columns_.find(*std::exchange(column.content_key, std::nullopt));
  auto removed = std::move(found->second);
  columns_.erase(found);
  return removed;
}

PageColumn* PrefixCache::first_to_go() const {
  const auto first =
      std::ranges::find_if(idle_, [](auto* column) { return column->num_pins == 0; });
  return first == idle_.end() ? nullptr : *first;
}

}  // namespace millrace::kvstore
