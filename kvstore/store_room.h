// SPDX-License-Identifier: Apache-2.0
// Makes room in the tiers for pages to come: idle columns of the prefix cache give way, and the
// disk's file grows.
//
// Threads: any. Whoever looks for room holds alone() until the room is reserved, so that nobody
// takes it in between. That lock comes before the ColumnKeeper's and the store's, and may be held
// over file operations.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/result.h"
#include "kvstore/kept/column_keeper.h"
#include "kvstore/kv_store.h"
#include "kvstore/pages/page_column.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/prefix_cache.h"
#include "kvstore/pages/residency.h"

namespace millrace::kvstore {

class StoreRoom {
 public:
  using Columns = std::vector<std::shared_ptr<PageColumn>>;

  // All arguments outlive it; `mutex`, the store's lock, guards `residency` and `cache`. A column
  // has `num_rows` pages.
  StoreRoom(PageIo& io, Residency& residency, PrefixCache& cache, std::mutex& mutex,
            ColumnKeeper& keeper, int64_t num_rows)
      : io_(io),
        residency_(residency),
        cache_(cache),
        mutex_(mutex),
        keeper_(keeper),
        num_rows_(num_rows) {}

  // Without the store's lock:
  std::unique_lock<std::mutex> alone() { return std::unique_lock(growing_); }
  // If all idle columns may have to give way for this many pages, then so must the column that is
  // being copied for the archive, which is pinned. Waits for that copy, and holds off the next one.
  std::unique_lock<std::mutex> hold_off_saving(int64_t num_pages);
  // kExhausted, kIo.
  Result<void> grow_disk(const std::string& request_id, int64_t num_pages);
  // Does all steps for a column that is brought for the `sequence`-th request. Columns that this
  // request may begin with do not give way.
  Result<void> reserve_for(int64_t num_pages, int64_t sequence);
  // Gives an unused disk file back to the file system.
  void shrink_disk();

  // With the store's lock held:
  // Evicts idle columns that were last used before the `before`-th request until num_pages are
  // available; the caller lets them go without the lock. False if that is not enough. If evicting
  // all of them would not be enough, nothing is touched.
  enum class For : uint8_t { kRequest, kKept };
  bool make(int64_t num_pages, int64_t before, For whom, Columns& gone);
  // kExhausted if the disk grew by less than is needed.
  Result<void> reserve(const std::string& request_id, int64_t num_pages);
  Error none_for(const std::string& request_id, int64_t num_pages) const;
  int64_t available() const { return residency_.available() + idle_pages(); }
  int64_t idle_pages() const { return cache_.num_idle() * num_rows_; }
  const CacheEvictions& evictions() const { return evictions_; }  // in the tiers

 private:
  PageIo& io_;
  Residency& residency_;
  PrefixCache& cache_;
  std::mutex& mutex_;
  ColumnKeeper& keeper_;
  const int64_t num_rows_;
  std::mutex growing_;        // taken before mutex_
  CacheEvictions evictions_;  // guarded by mutex_
};

}  // namespace millrace::kvstore
