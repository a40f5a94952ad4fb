// SPDX-License-Identifier: Apache-2.0
// Columns of the prefix cache in files that outlive the process: what a group finds again after it
// ended, however it ended.
//
// Why nothing wrong is ever read. A record says that this slot has the column of this key, and what
// the checksum of its table is; the table has the checksum of each page. A column is handed out
// only if record, table and all pages match. So it does not matter which writes a crash left
// undone, or in which order the disk did them: what matches is what was written for this key. The
// order of writes only saves trouble: a slot's record is cleared before the slot is written, and
// written after it, so a process that is killed leaves whole columns and empty slots. Nothing is
// synced: data that a process has written is in the hands of the system, and a power cut costs what
// the disk did not have yet (docs/adr/0018-prefixes-outlive-their-group.md).
//
// Room: slots are taken from the disk one by one, up to the limit. After that, or when the disk is
// full, the least recently used column gives way, and among equals the one deepest in the prompt,
// as in the prefix cache itself.
//
// Threads: any. The lock is held for bookkeeping only. Files are read, written and grown outside
// it, so that a disk that hangs does not hold up a caller who asks what is there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/archive/archive_files.h"
#include "kvstore/archive/archive_layout.h"

namespace millrace::kvstore {

struct ArchiveStats {
  int64_t columns = 0;
  int64_t slot_bytes = 0;
  int64_t saved = 0;      // columns, since start
  int64_t evictions = 0;  // columns that gave way to others
  int64_t damaged = 0;    // columns forgotten because a checksum did not match
};

class PrefixArchive {
 public:
  struct Options {
    std::string directory;
    std::string name;
    std::string identity;
    int64_t max_bytes = 0;
    Duration lock_patience = kArchiveLockPatience;
  };
  // As ArchiveFiles::open; kInvalidArgument if not even one column fits.
  static Result<std::unique_ptr<PrefixArchive>> open(const Options& options,
                                                     const ArchiveLayout& layout);

  struct Column {
    PageContentKey key{};
    int64_t page = 0;
    int64_t sequence = 0;                 // of the request that used it last
    std::span<const float> digests;       // of all rows
    std::span<const uint64_t> checksums;  // of their pages
  };
  // The page of a row. The next call may overwrite the returned bytes.
  using PageOf = std::function<Result<std::span<const std::byte>>(int64_t row)>;
  // Does nothing if the column is there already, or if all columns there are worth more. kIo: the
  // slot is given up.
  Result<void> save(const Column& column, const PageOf& page_of);

  // What is known of a column before its pages are read.
  struct Table {
    int64_t page = 0;
    std::span<const float> digests;
    std::span<const uint64_t> checksums;
  };
  using OnTable = std::function<Result<void>(const Table&)>;
  using OnPage = std::function<Result<void>(int64_t row, std::span<const std::byte>)>;
  // Passes the table, then each page; all of it is valid only if load() succeeds. Errors:
  // kNotFound; kCorrupt or kIo, after which the column is forgotten as damaged; those of the
  // callbacks.
  Result<void> load(const PageContentKey& key, const OnTable& on_table, const OnPage& on_page);

  bool contains(const PageContentKey& key) const;
  // A request begins with this column: the `sequence`-th of this process, which counts as later
  // than all requests of earlier processes.
  void touch(const PageContentKey& key, int64_t sequence);
  // The columns that are there, most recently used first, and among equals the ones nearest to the
  // beginning of the prompt.
  struct Use {
    PageContentKey key{};
    int64_t sequence = 0;  // as in save(); below 0 for an earlier process
  };
  std::vector<Use> by_use() const;
  // Columns that gave way or were damaged since the last call.
  std::vector<PageContentKey> take_forgotten();
  ArchiveStats stats() const;

  // For tests. Called in the middle of save(), where tests end the process, and in load() before
  // each page is read, where tests simulate a disk that is slow or hangs. Set before other threads
  // use the archive.
  enum class Step {
    kFileGrows,
    kSlotTaken,
    kPageWritten,
    kTableWritten,
    kRecordWritten,
    kPageAhead
  };
  void set_step_hook(std::function<void(Step)> hook) { step_hook_ = std::move(hook); }

 private:
  struct Slot {
    int64_t slot = 0;
    ArchiveRecord record;
    int num_readers = 0;
  };
  struct GoesFirst {
    bool operator()(const Slot* a, const Slot* b) const;
  };

  PrefixArchive(ArchiveFiles files, const ArchiveLayout& layout, int64_t max_slots);
  void adopt_found();
  // Takes a free slot, else one that the file grows by, else that of a column worth less. None if
  // there is none of these.
  std::optional<int64_t> take_slot(const Column& column);
  std::optional<int64_t> take_from_disk();
  // With the lock held:
  int64_t take_free();
  std::optional<int64_t> take_from_other(const Column& column);
  void forget(Slot& slot);

  uint64_t use_of(int64_t sequence) const { return first_use_ + static_cast<uint64_t>(sequence); }
  Result<ArchiveRecord> write(int64_t slot, const Column& column, const PageOf& page_of);
  // `damaged`: set if an error is the files'.
  Result<void> read(const Slot& slot, const OnTable& on_table, const OnPage& on_page,
                    bool& damaged) const;
  Slot* hold(const PageContentKey& key);
  void release(Slot& slot, bool damaged);
  void step(Step step) const {
    if (step_hook_) step_hook_(step);
  }

  const ArchiveLayout layout_;
  std::function<void(Step)> step_hook_;

  // Held while the file grows; guards how many slots there are and may be.
  std::mutex growing_;
  ArchiveFiles files_;
  int64_t max_slots_;

  mutable std::mutex mutex_;  // guards all that follows
  std::unordered_map<PageContentKey, std::unique_ptr<Slot>, PageContentKeyHash> columns_;
  std::set<Slot*, GoesFirst> by_use_;
  std::set<PageContentKey> writing_;
  std::vector<int64_t> free_;
  std::vector<PageContentKey> forgotten_;
  uint64_t first_use_ = 0;  // of this process; set before threads use the archive
  ArchiveStats stats_;
};

}  // namespace millrace::kvstore
