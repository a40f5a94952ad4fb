// After a start: the prefixes that earlier processes kept come from the archive into free memory, those used last first, each
// from the prompt's beginning on. The first prompts find them there instead of waiting for the disk, and how fast it is
// read is known by then (kvstore/kept/read_meter.h).
//
// Nothing gives way to them: what is warmed up takes memory that nothing else has asked for, and is the first to go. It ends
// when that is full, when all are there, or with a disk that does not answer.
//
// Threads: one, that tends the store. The lock is held for bookkeeping alone.
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

class WarmUp {
 public:
  // All outlive it; `mutex`, the store's lock, guards `residency` and `cache`. A column has `num_rows` pages.
  WarmUp(ColumnKeeper& keeper, const Residency& residency, const PrefixCache& cache,
         std::mutex& mutex, int64_t num_rows);

  // Brings a few columns, and waits for the disk for a second at most. False: it has ended.
  bool next();

 private:
  // The next ones, all used by one request, for which there is room. Those that are there already, or kept no more, are
  // passed over.
  std::vector<PageContentKey> take();
  // With or without the next ones.
  void go_on_after(const Error& failure, bool has_brought);
  void end();

  ColumnKeeper& keeper_;
  const Residency& residency_;
  const PrefixCache& cache_;
  std::mutex& mutex_;
  const int64_t num_rows_;
  std::vector<PrefixArchive::Use> left_;  // the next one last
  int64_t num_columns_ = 0;               // brought
};

}  // namespace millrace::kvstore
