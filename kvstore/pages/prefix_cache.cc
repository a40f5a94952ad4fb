// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/check.h"

namespace millrace::kvstore {

bool PrefixCache::GoesFirst::operator()(const PageColumn* a, const PageColumn* b) const {
  const auto first = a->retention.order(a->page());
  const auto second = b->retention.order(b->page());
  if (first != second) return first < second;
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
  column.retention.bring_forward(clock_);
  log_.entered(key);
}

void PrefixCache::take(PageColumn& column, int64_t sequence) {
  idle_.erase(&column);
  column.retention.use(sequence, clock_);
  ++column.num_requests;
}

bool PrefixCache::release(PageColumn& column) {
  MR_CHECK(column.num_requests > 0, "nobody holds page {}", column.page());
  if (--column.num_requests > 0) return false;
  if (!column.content_key) return true;
  idle_.insert(&column);
  return false;
}

template <typename Change>
void PrefixCache::revalue(PageColumn& column, const Change& change) {
  const bool is_idle = idle_.erase(&column) > 0;
  change(column.retention);
  if (is_idle) idle_.insert(&column);
}

void PrefixCache::touch(PageColumn& column, int64_t sequence) {
  revalue(column, [&](Retention& retention) { retention.use(sequence, clock_); });
}

void PrefixCache::raise_cost(PageColumn& column, double cost) {
  revalue(column, [&](Retention& retention) { retention.raise_cost(cost, clock_); });
}

std::shared_ptr<PageColumn> PrefixCache::remove(PageColumn& column) {
  idle_.erase(&column);
  const auto found = columns_.find(*std::exchange(column.content_key, std::nullopt));
  auto removed = std::move(found->second);
  log_.left(found->first);
  columns_.erase(found);
  return removed;
}

std::shared_ptr<PageColumn> PrefixCache::give_way(PageColumn& column) {
  most_given_up_ = std::max(most_given_up_, column.retention.worth());
  return remove(column);
}

// Few columns are skipped: pinned ones are being read, and those that a coming request uses are
// worth more than most.
PageColumn* PrefixCache::first_to_go(int64_t before) const {
  const auto first = std::ranges::find_if(idle_, [before](auto* column) {
    return column->num_pins == 0 && column->retention.last_used() < before;
  });
  return first == idle_.end() ? nullptr : *first;
}

void PrefixCache::advance_clock(double clock) {
  clock_ = std::max(clock_, clock);
}

}  // namespace millrace::kvstore
