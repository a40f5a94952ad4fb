// The columns of pages that stay for later prompts, by the key of their content
// (common/content/page_keys.h), whether requests hold them or not. Those that nobody holds are idle,
// and go where room is needed, the one worth least first (kvstore/rules/retention.h), in O(log n). A page never goes
// before those that follow it.
//
// Ranks of a group decide on their own and alike: worth follows from the requests, which all see in the same order, and
// from a clock that they agree on (advance_clock). So the same chains give way everywhere, each rank's pages of one down to
// the same depth, but for the last few.
// Not thread-safe: under the store's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>

#include "kvstore/pages/page_column.h"

namespace millrace::kvstore {

class PrefixCache {
 public:
  // Null where there is none.
  PageColumn* find(const PageContentKey& key) const;
  // No column is under the key, and a request holds this one.
  void insert(const PageContentKey& key, PageColumn& column);
  // A request, the `sequence`-th, takes the column and lets it go. Of columns outside the cache too;
  // let_go() says whether nobody holds it any more, the cache included.
  void take(PageColumn& column, int64_t sequence);
  bool let_go(PageColumn& column);
  // Used by a request that does not hold it.
  void touch(PageColumn& column, int64_t sequence);
  // What a column of a prompt took to compute, of those that it began with and those that it left.
  void raise_cost(PageColumn& column, double cost);
  // It has no key from here on. The caller frees one that no request holds.
  std::shared_ptr<PageColumn> remove(PageColumn& column);
  // remove(), of one that makes room for others.
  std::shared_ptr<PageColumn> give_way(PageColumn& column);
  // The idle column to give up first, of those that were used before the `before`-th request; null where there is none
  // that is not pinned.
  PageColumn* first_to_go(int64_t before) const;

  // What gave way so far was worth so much at most: where the clocks of a group's ranks should be.
  double most_given_up() const { return most_given_up_; }
  // From here on uses count from there. It never goes back.
  void advance_clock(double clock);

  int64_t num_columns() const { return std::ssize(columns_); }
  int64_t num_idle() const { return std::ssize(idle_); }
  const auto& columns() const { return columns_; }

 private:
  struct GoesFirst {
    bool operator()(const PageColumn* a, const PageColumn* b) const;
  };
  // `change` makes it worth more.
  template <typename Change>
  void revalue(PageColumn& column, const Change& change);

  std::unordered_map<PageContentKey, std::shared_ptr<PageColumn>, PageContentKeyHash> columns_;
  std::set<PageColumn*, GoesFirst> idle_;
  double clock_ = 0;
  double most_given_up_ = 0;
};

}  // namespace millrace::kvstore
