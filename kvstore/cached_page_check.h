// SPDX-License-Identifier: Apache-2.0
// Checks whether pages that stay for later prompts still have the checksum they were written with.
// Reads them pinned, outside the store's lock, and forgets a page that is damaged in any layer or
// kv head.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "kvstore/kept/read_meter.h"
#include "kvstore/kv_store.h"
#include "kvstore/pages/page_column.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/prefix_cache.h"
#include "kvstore/pages/residency.h"

namespace millrace::kvstore {

class CachedPageCheck {
 public:
  // All arguments outlive the check. `mutex` guards `residency`, `cache` and the columns; `meter`
  // is the disk tier's.
  CachedPageCheck(const PageIo& io, Residency& residency, PrefixCache& cache, std::mutex& mutex,
                  ReadMeter& meter)
      : io_(io), residency_(residency), cache_(cache), mutex_(mutex), meter_(meter) {}

  // For each key, whether its page is remembered and intact. May be called from any thread, several
  // at once.
  std::vector<bool> check(std::span<const PageContentKey> keys, CacheCheck what);
  // Number of pages forgotten as damaged. Under the lock.
  int64_t num_damaged() const { return num_damaged_; }

 private:
  bool is_intact(const PageContentKey& key, CacheCheck what);
  // The column must be pinned.
  Result<void> read(PageColumn& column, CacheCheck what) const;
  void forget(const PageContentKey& key, PageColumn& column);

  const PageIo& io_;
  Residency& residency_;
  PrefixCache& cache_;
  std::mutex& mutex_;
  ReadMeter& meter_;
  int64_t num_damaged_ = 0;
};

}  // namespace millrace::kvstore
