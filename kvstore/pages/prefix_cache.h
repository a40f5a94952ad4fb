// SPDX-License-Identifier: Apache-2.0
// The columns of pages that stay for later prompts, by the key of their content
// (common/content/page_keys.h), whether requests hold them or not. Columns that nobody holds are
// idle and give way when room is needed, the one worth least first (kvstore/rules/retention.h), in
// O(log n). A page never goes before the pages that follow it.
//
// The ranks of a group decide on their own but alike: worth follows from the requests, which all
// ranks see in the same order, and from a clock that they agree on (advance_clock). So the same
// chains give way everywhere, and each rank's pages of a chain go down to the same depth, except
// for the last few.
// Not thread-safe: used under the store's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>

#include "kvstore/pages/cache_log.h"
#include "kvstore/pages/page_column.h"

namespace millrace::kvstore {

class PrefixCache {
 public:
  // `log` outlives the cache, and is told which pages come and go.
  explicit PrefixCache(CacheLog& log) : log_(log) {}

  // Null where there is none.
  PageColumn* find(const PageContentKey& key) const;
  // The key must have no column yet, and a request must hold this one.
  void insert(const PageContentKey& key, PageColumn& column);
  // The `sequence`-th request takes the column, and later lets it go. Also for columns outside the
  // cache; release() returns whether nobody holds the column any more, the cache included.
  void take(PageColumn& column, int64_t sequence);
  bool release(PageColumn& column);
  // A request uses the column without holding it.
  void touch(PageColumn& column, int64_t sequence);
  // What a column of a prompt took to compute. For the columns that the prompt began with and those
  // that it left.
  void raise_cost(PageColumn& column, double cost);
  // The column has no key from here on. If no request holds it, the caller frees it.
  std::shared_ptr<PageColumn> remove(PageColumn& column);
  // remove() for a column that makes room for others.
  std::shared_ptr<PageColumn> give_way(PageColumn& column);
  // The idle column to give up first, among those last used before the `before`-th request; null if
  // there is none that is not pinned.
  PageColumn* first_to_go(int64_t before) const;

  // The highest worth that has given way so far: where the clocks of a group's ranks should be.
  double most_given_up() const { return most_given_up_; }
  // Uses count from this clock from here on. It never goes back.
  void advance_clock(double clock);

  int64_t num_columns() const { return std::ssize(columns_); }
  int64_t num_idle() const { return std::ssize(idle_); }
  const auto& columns() const { return columns_; }

 private:
  struct GoesFirst {
    bool operator()(const PageColumn* a, const PageColumn* b) const;
  };
  // `change` makes the column worth more.
  template <typename Change>
  void revalue(PageColumn& column, const Change& change);

  CacheLog& log_;
  std::unordered_map<PageContentKey, std::shared_ptr<PageColumn>, PageContentKeyHash> columns_;
  std::set<PageColumn*, GoesFirst> idle_;
  double clock_ = 0;
  double most_given_up_ = 0;
};

}  // namespace millrace::kvstore
