// Between the prefix cache and the archive (archive/prefix_archive.h): saves columns that are remembered, and brings back
// those that the archive alone has. None of it is done where there is no archive.
//
// Threads: any. Pages are copied outside the store's lock, pinned when they are saved and known to nobody else when they
// are restored. Files are written and read by threads that who waits for them leaves when time is up: neither a prompt
// nor the end of a rank waits for a disk that hangs.
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
  // Reserves so many pages in the tiers (Residency::reserve), for which idle columns that were used before the `sequence`-th
  // request give way. Without the store's lock.
  using Reserve = std::function<Result<void>(int64_t num_pages, int64_t sequence)>;

  // All but `archive`, which may be null, outlive the keeper; `mutex` guards `residency`, `cache` and the columns; `meter`
  // is of the archive.
  ColumnKeeper(std::unique_ptr<PrefixArchive> archive, const KvGeometry& geometry, PageIo& io,
               Residency& residency, PrefixCache& cache, std::mutex& mutex, ReadMeter& meter,
               const Clock& clock, Reserve reserve);

  bool keeps() const { return archive_ != nullptr; }
  bool has(const PageContentKey& key) const { return keeps() && archive_->contains(key); }
  // PrefixArchive::by_use; empty where there is none.
  std::vector<PrefixArchive::Use> kept_by_use() const;
  // Under the store's lock: a column that came into the cache, to be saved.
  void remembered(const PageContentKey& key);
  // Waits for the column that is pinned to be copied, and holds off the next one: pinned ones do not give way.
  std::unique_lock<std::mutex> wait_for_copy() { return std::unique_lock(copying_); }
  // Saves one of them, and waits for the disk until `deadline`. False: there is none, nor one under way.
  bool save_next(Deadline deadline) { return save_next(Clock::steady(), deadline.when()); }
  // Those that were used last first, each from the prompt's beginning on. Returns when `patience` is over, whatever the
  // disk does: how many are left then.
  int64_t save_all(Duration patience);
  // A request, the `sequence`-th, may begin with these: columns that are in the archive alone are brought into the cache
  // as far as there is room and time, and all of them are used. What is damaged is forgotten. Returns when `patience` is
  // over, whatever the disk does: what was read by then is there.
  void bring(std::span<const PageContentKey> keys, int64_t sequence, Duration patience);
  // Ahead of any request: columns that the archive alone has, in their order, as far as there is room that idle ones used
  // before `sequence` do not take, and time.
  struct Brought {
    int64_t num_columns = 0;
    std::optional<Error> failure;  // of the next one
  };
  Brought bring_ahead(std::span<const PageContentKey> keys, int64_t sequence, Duration patience);
  // Not while a read that was left has not come back: nothing else is read then.
  bool answers() const { return num_left_->load() == 0; }
  // Zeros where there is no archive.
  ArchiveStats stats() const;
  // Under the store's lock: columns that were brought, and how often time was up before all were.
  int64_t num_restored() const { return num_restored_; }
  int64_t num_late() const { return num_late_; }

 private:
  bool save_next(const Clock& clock, TimePoint until);
  // Hands the next one to the writer. False: there is none.
  bool begin_next();
  void save(const PageContentKey& key);
  Result<ArchiveWriter::Column> copy_of(const PageContentKey& key, PageColumn& column) const;
  // The column is pinned.
  Result<void> copy_page(const PageEntry& entry, std::span<std::byte> to) const;
  // The touched ones that wait longest, some at a time. False: there is none.
  bool touch_next();
  void tell_of_unsaved(const Error& failure);
  // Of these the ones that only the archive has, up to the first that nobody has; all are used.
  std::vector<PageContentKey> use(std::span<const PageContentKey> keys, int64_t sequence);
  Brought read(std::span<const PageContentKey> keys, int64_t sequence, TimePoint until);
  // The next column, for which there is room; that goes where it does not come.
  Result<void> restore(ColumnReading& reading, int64_t sequence);
  Result<void> place(const ColumnReading::Column& kept, int64_t sequence);
  Result<void> take_table(PageColumn& column, const ColumnReading::Column& kept) const;
  // `sequence`: of the request that it is brought for; below 0: of one of an earlier process.
  void adopt(const PageContentKey& key, PageColumn& column, std::span<const PageSlots> slots,
             int64_t sequence);
  void tell_of(const Error& failure);
  int64_t num_rows() const { return int64_t{geometry_.num_layers} * geometry_.num_kv_heads; }

  const std::shared_ptr<PrefixArchive> archive_;  // of reads that were left too
  const KvGeometry geometry_;
  PageIo& io_;
  Residency& residency_;
  PrefixCache& cache_;
  std::mutex& mutex_;
  ReadMeter& meter_;
  const Clock& clock_;
  const Reserve reserve_;
  const std::unique_ptr<ArchiveWriter> writer_;  // null where there is no archive
  std::atomic<bool> warned_ = false;             // that saves fail
  std::mutex copying_;                           // taken before mutex_
  std::deque<PageContentKey> to_save_;           // guarded by mutex_, as all that follows
  // Columns that requests began with, and which: records are written behind the prompts, as columns are.
  std::deque<std::pair<PageContentKey, int64_t>> to_touch_;
  int64_t num_restored_ = 0;
  int64_t num_late_ = 0;
  const std::shared_ptr<ColumnReading::NumLeft> num_left_ =
      std::make_shared<ColumnReading::NumLeft>(0);
  std::atomic<bool> told_ = false;  // that reads hang
};

}  // namespace millrace::kvstore
