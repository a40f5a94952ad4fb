// SPDX-License-Identifier: Apache-2.0
// After a start, brings the prefixes that earlier processes kept from the archive into free memory,
// the most recently used first, each from the beginning of its prompt. The first prompts find them
// there instead of waiting for the disk, and by then it is known how fast the disk is
// (kvstore/kept/read_meter.h).
//
// Nothing gives way to them: they take memory that nothing else has asked for, and are the first to
// go. Warming up ends when that memory is full, when all are there, or when the disk does not
// answer.
//
// Threads: only the one that tends the store. The lock is held for bookkeeping only.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "common/result.h"
#include "kvstore/archive/prefix_archive.h"
#include "kvstore/kept/column_keeper.h"
#include "kvstore/pages/prefix_cache.h"
#include "kvstore/pages/residency.h"

namespace millrace::kvstore {

class PrefixLoader {
 public:
  // All arguments outlive it; `mutex`, the store's lock, guards `residency` and `cache`. A column
  // has `num_rows` pages.
  PrefixLoader(ColumnKeeper& keeper, const Residency& residency, const PrefixCache& cache,
               std::mutex& mutex, int64_t num_rows);

  // Brings a few columns, and waits for the disk for a second at most. False once it has ended.
  bool next();

 private:
  // The next columns, as many as there is room for, all last used by one request. Skips those that
  // are in the cache already or no longer kept.
  std::vector<PageContentKey> take();
  // Decides whether to go on after a failure, and with what.
  void continue_after(const Error& failure, bool has_brought);
  void end();

  ColumnKeeper& keeper_;
  const Residency& residency_;
  const PrefixCache& cache_;
  std::mutex& mutex_;
  const int64_t num_rows_;
  std::vector<PrefixArchive::Use> left_;  // the next one is last
  int64_t num_columns_ = 0;               // brought
};

}  // namespace millrace::kvstore
