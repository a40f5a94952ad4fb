// The columns of pages that stay for later prompts, by the key of their content
// (common/content/page_keys.h), whether requests hold them or not. Those that nobody holds are idle,
// and go where room is needed: the ones used least lately first, of these the deepest in the prompt.
// Who uses a page uses all before it, so a page never goes before those that follow it; and all ranks
// see the same requests in the same order, so they give up the same pages.
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
  // It has no key from here on. The caller frees one that no request holds.
  std::shared_ptr<PageColumn> remove(PageColumn& column);
  // The idle column to give up first; null where all are pinned.
  PageColumn* first_to_go() const;

  int64_t num_columns() const { return std::ssize(columns_); }
  int64_t num_idle() const { return std::ssize(idle_); }
  const auto& columns() const { return columns_; }

 private:
  struct GoesFirst {
    bool operator()(const PageColumn* a, const PageColumn* b) const;
  };

  std::unordered_map<PageContentKey, std::shared_ptr<PageColumn>, PageContentKeyHash> columns_;
  std::set<PageColumn*, GoesFirst> idle_;
};

}  // namespace millrace::kvstore
