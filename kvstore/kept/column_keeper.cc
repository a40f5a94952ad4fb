// SPDX-License-Identifier: Apache-2.0
#include "kvstore/kept/column_keeper.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/aligned_buffer.h"
#include "common/checksum.h"
#include "common/log.h"

namespace millrace::kvstore {

namespace {

// Names, in messages, columns that no request of this process has written.
constexpr const char* kNoRequest = "of an earlier life";
// Pages assumed behind a kept page, so that it does not count as one of a prompt's last pages
// (rules/placement.h).
constexpr int64_t kPagesBehind = 1 << 20;
// As many as can be touched in the time of saving one column.
constexpr size_t kTouchesAtOnce = 256;
// If more than these wait, the disk does not keep up, and some columns keep the order of an earlier
// use.
constexpr size_t kMostTouches = 1 << 18;

}  // namespace

ColumnKeeper::ColumnKeeper(std::unique_ptr<PrefixArchive> archive, const KvGeometry& geometry,
                           PageIo& io, Residency& residency, PrefixCache& cache, std::mutex& mutex,
                           ReadMeter& meter, const Clock& clock, Reserve reserve)
    : archive_(std::move(archive)),
      geometry_(geometry),
      io_(io),
      residency_(residency),
      cache_(cache),
      mutex_(mutex),
      meter_(meter),
      clock_(clock),
      reserve_(std::move(reserve)),
      writer_(archive_ ? std::make_unique<ArchiveWriter>(archive_) : nullptr) {}

ArchiveStats ColumnKeeper::stats() const {
  return keeps() ? archive_->stats() : ArchiveStats();
}

std::vector<PrefixArchive::Use> ColumnKeeper::kept_by_use() const {
  if (!keeps()) return {};
  return archive_->by_use();
}

// A column that has just been written is no longer waiting, and is in the archive.
bool ColumnKeeper::will_have(const PageContentKey& key) const {
  if (!keeps()) return false;
  const auto waiting = writer_->waiting();
  return std::ranges::find(waiting, key) != waiting.end() || archive_->contains(key);
}

std::vector<PageContentKey> ColumnKeeper::all() const {
  if (!keeps()) return {};
  auto keys = writer_->waiting();
  for (const auto& use : archive_->by_use()) keys.push_back(use.key);
  return keys;
}

std::vector<PageContentKey> ColumnKeeper::take_forgotten() {
  if (!keeps()) return {};
  auto keys = archive_->take_forgotten();
  const auto unsaved = writer_->take_unsaved();
  keys.insert(keys.end(), unsaved.begin(), unsaved.end());
  return keys;
}

void ColumnKeeper::remembered(const PageContentKey& key) {
  if (keeps()) to_save_.push_back(key);
}

bool ColumnKeeper::touch_next() {
  ArchiveWriter::Touches touched;
  {
    const std::lock_guard lock(mutex_);
    const auto count = static_cast<std::ptrdiff_t>(std::min(kTouchesAtOnce, to_touch_.size()));
    touched.assign(to_touch_.begin(), to_touch_.begin() + count);
    to_touch_.erase(to_touch_.begin(), to_touch_.begin() + count);
  }
  if (touched.empty()) return false;
  writer_->touch(std::move(touched));
  return true;
}

bool ColumnKeeper::save_next(const Clock& clock, TimePoint until) {
  if (!keeps()) return false;
  if (!writer_->wait(clock, until)) return true;
  const bool has_begun = begin_next();
  const bool is_written = writer_->wait(clock, until);
  if (const auto failure = writer_->take_failure()) log_unsaved(*failure);
  return has_begun || !is_written;
}

// Uses are written first, so that they are known when the archive decides which column gives way.
bool ColumnKeeper::begin_next() {
  const std::lock_guard copying(copying_);
  if (touch_next()) return true;
  PageContentKey key{};
  {
    const std::lock_guard lock(mutex_);
    if (to_save_.empty()) return false;
    key = to_save_.front();
    to_save_.pop_front();
  }
  save(key);
  return true;
}

int64_t ColumnKeeper::save_all(Duration patience) {
  if (!keeps()) return 0;
  const TimePoint until = clock_.now() + patience;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(to_save_, [this](const auto& key) { return cache_.find(key) == nullptr; });
    std::ranges::stable_sort(to_save_, [this](const auto& a, const auto& b) {
      const PageColumn& first = *cache_.find(a);
      const PageColumn& second = *cache_.find(b);
      return std::tuple(-first.retention.last_used(), first.page()) <
             std::tuple(-second.retention.last_used(), second.page());
    });
  }
  while (clock_.now() < until && save_next(clock_, until)) continue;
  const std::lock_guard lock(mutex_);
  return std::ssize(to_save_) + std::ssize(writer_->waiting());
}

// A column that gave way meanwhile is not saved: it was worth least.
void ColumnKeeper::save(const PageContentKey& key) {
  std::shared_ptr<PageColumn> column;
  std::vector<PageEntry*> entries;
  if (archive_->contains(key)) return;
  {
    const std::lock_guard lock(mutex_);
    PageColumn* const found = cache_.find(key);
    if (found == nullptr) return;
    column = found->shared_from_this();
    for (PageEntry& entry : column->entries()) entries.push_back(&entry);
    residency_.pin_for_reader(entries);
  }
  auto copy = copy_of(key, *column);
  // From the moment when the column may give way, the writer has it: will_have() is never wrong.
  const std::lock_guard lock(mutex_);
  residency_.unpin_for_reader(entries);
  if (!copy.ok()) return log_unsaved(copy.error());
  copy->sequence = column->retention.last_used();
  writer_->save(*std::move(copy));
}

// A column is megabytes, so it is copied faster than a disk can write it.
Result<ArchiveWriter::Column> ColumnKeeper::copy_of(const PageContentKey& key,
                                                    PageColumn& column) const {
  const int64_t page_bytes = io_.page_bytes();
  const auto digests = column.digests();
  ArchiveWriter::Column copy{.key = key,
                             .page = column.page(),
                             .digests = {digests.begin(), digests.end()},
                             .checksums = {},
                             .pages = AlignedBuffer(page_bytes * column.num_entries())};
  std::byte* to = copy.pages.as<std::byte>();
  for (const PageEntry& entry : column.entries()) {
    MR_RETURN_IF_ERROR(copy_page(entry, {to, static_cast<size_t>(page_bytes)}));
    copy.checksums.push_back(entry.checksum);
    to += page_bytes;
  }
  return copy;
}

Result<void> ColumnKeeper::copy_page(const PageEntry& entry, std::span<std::byte> to) const {
  Tier tier{};
  int32_t slot = 0;
  {
    const std::lock_guard lock(mutex_);
    tier = entry.slots.best();
    slot = entry.slots[tier];
  }
  const auto in_place = io_.address(tier, slot);
  if (in_place.empty()) return io_.read(tier, slot, entry, to);
  std::ranges::copy(in_place, to.begin());
  if (checksum(to) == entry.checksum) return {};
  return error(Errc::kCorrupt, "page {} has not the checksum it was written with",
               entry.column->page());
}

void ColumnKeeper::log_unsaved(const Error& failure) {
  if (warned_.exchange(true)) return;
  log::warn("kvstore: prefixes may not be found after the next start: {}", failure.to_string());
}

void ColumnKeeper::bring(std::span<const PageContentKey> keys, int64_t sequence,
                         Duration patience) {
  if (!keeps()) return;
  const auto missing = use(keys, sequence);
  if (missing.empty() || patience <= Duration::zero() || !answers()) return;
  const auto brought = bring_ahead(missing, sequence, patience);
  if (brought.failure) log_failure(*brought.failure);
}

ColumnKeeper::Brought ColumnKeeper::bring_ahead(std::span<const PageContentKey> keys,
                                                int64_t sequence, Duration patience) {
  meter_.begin();
  auto brought = read(keys, sequence, clock_.now() + patience);
  meter_.end(brought.num_columns * archive_->stats().slot_bytes);
  if (!answers() && !told_.exchange(true)) {
    log::warn(
        "kvstore: a read of prefixes that were kept did not return in time: none are read until it "
        "does");
  }
  return brought;
}

std::vector<PageContentKey> ColumnKeeper::use(std::span<const PageContentKey> keys,
                                              int64_t sequence) {
  std::vector<PageContentKey> missing;
  const std::lock_guard lock(mutex_);
  for (const auto& key : keys) {
    if (PageColumn* const column = cache_.find(key); column != nullptr) {
      cache_.touch(*column, sequence);  // so that it does not give way to the rest of its prefix
    } else if (has(key)) {
      missing.push_back(key);
    } else {
      break;  // nothing after it is of use
    }
    if (to_touch_.size() < kMostTouches) to_touch_.emplace_back(key, sequence);
  }
  return missing;
}

// Room is reserved first: a column without room need not be read.
ColumnKeeper::Brought ColumnKeeper::read(std::span<const PageContentKey> keys, int64_t sequence,
                                         TimePoint until) {
  Brought brought;
  auto room = reserve_(num_rows(), sequence);
  if (!room.ok()) return {.num_columns = 0, .failure = room.error()};
  ColumnReading reading(archive_, {keys.begin(), keys.end()}, clock_, until, num_left_);
  while (room.ok()) {
    const auto restored = restore(reading, sequence);
    if (!restored.ok()) {
      brought.failure = restored.error();
      return brought;
    }
    if (++brought.num_columns == std::ssize(keys)) return brought;
    room = reserve_(num_rows(), sequence);
  }
  brought.failure = room.error();
  return brought;
}

void ColumnKeeper::log_failure(const Error& failure) {
  if (failure.code == Errc::kNotFound) return;
  if (failure.code == Errc::kExhausted) {
    log::debug("kvstore: no room to bring a prefix that was kept back: {}", failure.message);
    return;
  }
  if (failure.code != Errc::kDeadlineExceeded) {
    log::warn("kvstore: a prefix that was kept is computed again: {}", failure.to_string());
    return;
  }
  log::debug("kvstore: the rest of a prefix that was kept is computed: {}", failure.message);
  const std::lock_guard lock(mutex_);
  ++num_late_;
}

Result<void> ColumnKeeper::restore(ColumnReading& reading, int64_t sequence) {
  auto kept = reading.next();
  if (kept.ok()) return place(*kept, sequence);
  const std::lock_guard lock(mutex_);
  residency_.unreserve(num_rows());
  return kept.error();
}

Result<void> ColumnKeeper::place(const ColumnReading::Column& kept, int64_t sequence) {
  const auto column = std::make_shared<PageColumn>(kNoRequest, geometry_, kept.page,
                                                   kept.page + kPagesBehind, sequence);
  auto placed = take_table(*column, kept);
  std::vector<PageSlots> slots;
  {
    const std::lock_guard lock(mutex_);
    for (PageEntry& entry : column->entries()) {
      entry.state = PageState::kWriting;
      slots.push_back(residency_.take_for_write(entry));
    }
  }
  const int64_t page_bytes = io_.page_bytes();
  for (size_t row = 0; placed.ok() && row < slots.size(); ++row) {
    placed =
        io_.write(slots[row], {kept.pages.as<std::byte>() + static_cast<int64_t>(row) * page_bytes,
                               static_cast<size_t>(page_bytes)});
  }
  if (placed.ok()) {
    adopt(kept.key, *column, slots, sequence);
    return placed;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& taken : slots) residency_.give_back(taken);
  return placed;
}

Result<void> ColumnKeeper::take_table(PageColumn& column, const ColumnReading::Column& kept) const {
  const auto digests = column.digests();
  if (kept.digests.size() != digests.size() || std::ssize(kept.checksums) != column.num_entries()) {
    return error(Errc::kInternal, "a column of {} pages kept as one of {}", column.num_entries(),
                 kept.checksums.size());
  }
  std::ranges::copy(kept.digests, digests.begin());
  for (size_t row = 0; row < kept.checksums.size(); ++row) {
    column.entries()[row].checksum = kept.checksums[row];
  }
  return {};
}

// The column is idle from here on. Another thread may have brought the same one.
void ColumnKeeper::adopt(const PageContentKey& key, PageColumn& column,
                         std::span<const PageSlots> slots, int64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (cache_.find(key) != nullptr) {
    for (const auto& taken : slots) residency_.give_back(taken);
    return;
  }
  for (size_t row = 0; row < slots.size(); ++row) {
    PageEntry& entry = column.entries()[row];
    entry.state = PageState::kWritten;
    residency_.settle(entry, slots[row]);
  }
  ++num_restored_;
  column.sealed = true;
  column.num_requests = 1;
  cache_.insert(key, column);
  // Columns that nobody has asked for in this process are the first to go.
  if (sequence >= 0) cache_.touch(column, sequence);
  residency_.count_cached(column, 1);
  cache_.release(column);
}

}  // namespace millrace::kvstore
