// Room in the tiers for pages that are to come: idle columns of the prefix cache give way, and the disk's file grows.
//
// Threads: any. Who looks for room holds alone() until it is reserved, so that the room found is still there when it is
// taken; that lock comes before the ColumnKeeper's and the store's, and may be held over file operations.
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

  // All outlive it; `mutex`, the store's lock, guards `residency` and `cache`. A column has `num_rows` pages.
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
  // Where all idle columns may have to give way for so many pages, the one that is being copied for the archive, which is
  // pinned, must too: it is waited for, and the next one held off.
  std::unique_lock<std::mutex> hold_off_saving(int64_t num_pages);
  // kExhausted, kIo.
  Result<void> grow_disk(const std::string& request_id, int64_t num_pages);
  // All of it, for a column that is brought for the `sequence`-th request: what that may begin with does not give way.
  Result<void> reserve_for(int64_t num_pages, int64_t sequence);
  // Gives an unused disk file back to the file system.
  void shrink_disk();

  // With the store's lock held:
  // Idle columns that were used before the `before`-th request go until so many pages are available; they are
  // let go by the caller without the lock. False where it does not do; nothing is touched where all of them would not.
  enum class For : uint8_t { kRequest, kKept };
  bool make(int64_t num_pages, int64_t before, For whom, Columns& gone);
  // kExhausted where the disk grew by less than it takes.
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
