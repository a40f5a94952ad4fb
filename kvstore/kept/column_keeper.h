// SPDX-License-Identifier: Apache-2.0
// Between the prefix cache and the archive (archive/prefix_archive.h): saves columns that are
// remembered, and brings back those that only the archive has. Without an archive it does nothing.
//
// Threads: any. Pages are copied outside the store's lock: pinned when they are saved, and known to
// nobody else when they are restored. Files are written and read on threads that are abandoned when
// the waiting caller's time is up: neither a prompt nor the end of a rank waits for a disk that
// hangs.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/archive/archive_writer.h"
#include "kvstore/archive/column_reading.h"
#include "kvstore/archive/prefix_archive.h"
#include "kvstore/kept/read_meter.h"
#include "kvstore/pages/page_column.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/prefix_cache.h"
#include "kvstore/pages/residency.h"

namespace millrace::kvstore {

class ColumnKeeper {
 public:
  // Reserves num_pages in the tiers (Residency::reserve). Idle columns that were last used before
  // the `sequence`-th request give way. Called without the store's lock.
  using Reserve = std::function<Result<void>(int64_t num_pages, int64_t sequence)>;

  // All arguments but `archive`, which may be null, outlive the keeper. `mutex` guards `residency`,
  // `cache` and the columns; `meter` is the archive's.
  ColumnKeeper(std::unique_ptr<PrefixArchive> archive, const KvGeometry& geometry, PageIo& io,
               Residency& residency, PrefixCache& cache, std::mutex& mutex, ReadMeter& meter,
               const Clock& clock, Reserve reserve);

  bool keeps() const { return archive_ != nullptr; }
  bool has(const PageContentKey& key) const { return keeps() && archive_->contains(key); }
  // Whether the archive has the column, or is about to: it has been copied for it.
  bool will_have(const PageContentKey& key) const;
  // All of these; some may be named twice.
  std::vector<PageContentKey> all() const;
  // Columns that were among these and no longer are, since the last call; some may be again.
  std::vector<PageContentKey> take_forgotten();
  // PrefixArchive::by_use; empty without an archive.
  std::vector<PrefixArchive::Use> kept_by_use() const;
  // Under the store's lock: a column has come into the cache and is to be saved.
  void remembered(const PageContentKey& key);
  // Waits until the pinned column has been copied, and holds off the next one, because pinned
  // columns do not give way.
  std::unique_lock<std::mutex> wait_for_copy() { return std::unique_lock(copying_); }
  // Saves one column, and waits for the disk until `deadline`. False if there is none to save and
  // none under way.
  bool save_next(Deadline deadline) { return save_next(Clock::steady(), deadline.when()); }
  // Saves all of them, the most recently used first, each prompt from its beginning. Returns when
  // `patience` is over, whatever the disk does: the number of columns not saved.
  int64_t save_all(Duration patience);
  // The `sequence`-th request may begin with these. Brings columns that only the archive has into
  // the cache as far as there is room and time, and marks all of them as used. Damaged ones are
  // forgotten. Returns when `patience` is over, whatever the disk does; what was read by then is in
  // the cache.
  void bring(std::span<const PageContentKey> keys, int64_t sequence, Duration patience);
  // Ahead of any request: brings columns that only the archive has, in the order of `keys`, as far
  // as there is time and room that idle columns used before `sequence` do not take.
  struct Brought {
    int64_t num_columns = 0;
    std::optional<Error> failure;  // of the next one
  };
  Brought bring_ahead(std::span<const PageContentKey> keys, int64_t sequence, Duration patience);
  // False while an abandoned read has not come back: nothing else is read until then.
  bool answers() const { return num_left_->load() == 0; }
  // Zeros without an archive.
  ArchiveStats stats() const;
  // Under the store's lock: the number of columns brought, and how often time ran out before all
  // were.
  int64_t num_restored() const { return num_restored_; }
  int64_t num_late() const { return num_late_; }

 private:
  bool save_next(const Clock& clock, TimePoint until);
  // Hands the next one to the writer. False if there is none.
  bool begin_next();
  void save(const PageContentKey& key);
  Result<ArchiveWriter::Column> copy_of(const PageContentKey& key, PageColumn& column) const;
  // The column must be pinned.
  Result<void> copy_page(const PageEntry& entry, std::span<std::byte> to) const;
  // Writes the uses that wait longest, some at a time. False if there is none.
  bool touch_next();
  void log_unsaved(const Error& failure);
  // Marks keys as used up to the first that nobody has, and returns those that only the archive
  // has.
  std::vector<PageContentKey> use(std::span<const PageContentKey> keys, int64_t sequence);
  Brought read(std::span<const PageContentKey> keys, int64_t sequence, TimePoint until);
  // Places the next column, for which room is reserved; if it does not come, the room is given
  // back.
  Result<void> restore(ColumnReading& reading, int64_t sequence);
  Result<void> place(const ColumnReading::Column& kept, int64_t sequence);
  Result<void> take_table(PageColumn& column, const ColumnReading::Column& kept) const;
  // `sequence`: of the request that the column is brought for; below 0: of a request of an earlier
  // process.
  void adopt(const PageContentKey& key, PageColumn& column, std::span<const PageSlots> slots,
             int64_t sequence);
  void log_failure(const Error& failure);
  int64_t num_rows() const { return int64_t{geometry_.num_layers} * geometry_.num_kv_heads; }

  const std::shared_ptr<PrefixArchive> archive_;  // shared with abandoned reads
  const KvGeometry geometry_;
  PageIo& io_;
  Residency& residency_;
  PrefixCache& cache_;
  std::mutex& mutex_;
  ReadMeter& meter_;
  const Clock& clock_;
  const Reserve reserve_;
  const std::unique_ptr<ArchiveWriter> writer_;  // null where there is no archive
  std::atomic<bool> warned_ = false;             // logged that saves fail
  std::mutex copying_;                           // taken before mutex_
  std::deque<PageContentKey> to_save_;           // guarded by mutex_, as all that follows
  // Columns that requests began with, and which request. Their records are written later, like the
  // columns, so that prompts do not wait.
  std::deque<std::pair<PageContentKey, int64_t>> to_touch_;
  int64_t num_restored_ = 0;
  int64_t num_late_ = 0;
  const std::shared_ptr<ColumnReading::NumLeft> num_left_ =
      std::make_shared<ColumnReading::NumLeft>(0);
  std::atomic<bool> told_ = false;  // logged that reads hang
};

}  // namespace millrace::kvstore
