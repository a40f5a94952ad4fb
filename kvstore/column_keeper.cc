#include "kvstore/column_keeper.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/aligned_buffer.h"
#include "common/checksum.h"
#include "common/log.h"

namespace millrace::kvstore {

namespace {

// In messages, of columns that no request of this process has written.
constexpr const char* kNoRequest = "of an earlier life";
// A page of a prefix is not among a prompt's last ones (rules/placement.h).
constexpr int64_t kPagesBehind = 1 << 20;

}  // namespace

ColumnKeeper::ColumnKeeper(std::unique_ptr<PrefixArchive> archive, const KvGeometry& geometry,
                           PageIo& io, Residency& residency, PrefixCache& cache, std::mutex& mutex,
                           ReadMeter& meter, Reserve reserve)
    : archive_(std::move(archive)),
      geometry_(geometry),
      io_(io),
      residency_(residency),
      cache_(cache),
      mutex_(mutex),
      meter_(meter),
      reserve_(std::move(reserve)) {}

ArchiveStats ColumnKeeper::stats() const {
  return keeps() ? archive_->stats() : ArchiveStats();
}

void ColumnKeeper::remembered(const PageContentKey& key) {
  if (keeps()) to_save_.push_back(key);
}

bool ColumnKeeper::save_next() {
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

int64_t ColumnKeeper::save_all(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(to_save_, [this](const auto& key) { return cache_.find(key) == nullptr; });
    std::ranges::stable_sort(to_save_, [this](const auto& a, const auto& b) {
      const PageColumn& first = *cache_.find(a);
      const PageColumn& second = *cache_.find(b);
      return std::tuple(-first.last_used, first.page()) <
             std::tuple(-second.last_used, second.page());
    });
  }
  while (!deadline.passed() && save_next()) continue;
  const std::lock_guard lock(mutex_);
  return std::ssize(to_save_);
}

// One that gave way meanwhile is not saved: it was worth least.
void ColumnKeeper::save(const PageContentKey& key) {
  const std::lock_guard saving(saving_);
  std::shared_ptr<PageColumn> column;
  std::vector<PageEntry*> entries;
  int64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    PageColumn* const found = cache_.find(key);
    if (found == nullptr) return;
    column = found->shared_from_this();
    sequence = column->last_used;
    for (PageEntry& entry : column->entries()) entries.push_back(&entry);
    residency_.pin_for_reader(entries);
  }
  std::vector<uint64_t> checksums;
  for (const PageEntry* entry : entries) checksums.push_back(entry->checksum);
  AlignedBuffer staging(io_.page_bytes());
  const std::span bytes(staging.as<std::byte>(), static_cast<size_t>(io_.page_bytes()));
  const auto saved = archive_->save(
      {.key = key,
       .page = column->page(),
       .sequence = sequence,
       .digests = column->digests(),
       .checksums = checksums},
      [&](int64_t row) { return page_of(*entries[static_cast<size_t>(row)], bytes); });
  {
    const std::lock_guard lock(mutex_);
    residency_.unpin_for_reader(entries);
  }
  if (!saved.ok() && !std::exchange(warned_, true)) {
    spdlog::warn("kvstore: prefixes may not be found after the next start: {}",
                 saved.error().to_string());
  }
}

Result<std::span<const std::byte>> ColumnKeeper::page_of(PageEntry& entry,
                                                         std::span<std::byte> staging) const {
  Tier tier{};
  int32_t slot = 0;
  {
    const std::lock_guard lock(mutex_);
    tier = entry.slots.best();
    slot = entry.slots[tier];
  }
  const auto in_place = io_.address(tier, slot);
  if (in_place.empty()) {
    MR_RETURN_IF_ERROR(io_.read(tier, slot, entry, staging));
    return std::span<const std::byte>(staging);
  }
  if (checksum(in_place) == entry.checksum) return in_place;
  return error(Errc::kCorrupt, "page {} has not the checksum it was written with",
               entry.column->page());
}

void ColumnKeeper::bring(std::span<const PageContentKey> keys, int64_t sequence) {
  if (!keeps()) return;
  for (const auto& key : keys) {
    archive_->touch(key, sequence);
    bool is_cached = false;
    {
      const std::lock_guard lock(mutex_);
      PageColumn* const column = cache_.find(key);
      is_cached = column != nullptr;
      // It does not give way to the rest of its own prefix.
      if (is_cached) cache_.touch(*column, sequence);
    }
    if (is_cached) continue;
    meter_.begin();
    const auto restored = restore(key, sequence);
    meter_.end(restored.ok() ? archive_->stats().slot_bytes : 0);
    if (restored.ok()) continue;
    const auto& failure = restored.error();
    if (failure.code != Errc::kNotFound) {
      spdlog::warn("kvstore: a prefix that was kept is computed again: {}", failure.to_string());
    }
    return;  // nothing behind it is of use
  }
}

Result<void> ColumnKeeper::restore(const PageContentKey& key, int64_t sequence) {
  if (!has(key)) return error(Errc::kNotFound, "a page is not remembered");
  const auto num_rows = int64_t{geometry_.num_layers} * geometry_.num_kv_heads;
  MR_RETURN_IF_ERROR(reserve_(num_rows, sequence));
  std::shared_ptr<PageColumn> column;
  std::vector<PageSlots> slots;
  auto loaded = archive_->load(
      key,
      [&](const PrefixArchive::Table& table) -> Result<void> {
        column = std::make_shared<PageColumn>(kNoRequest, geometry_, table.page,
                                              table.page + kPagesBehind, sequence);
        MR_RETURN_IF_ERROR(take_table(*column, table));
        const std::lock_guard lock(mutex_);
        for (PageEntry& entry : column->entries()) {
          entry.state = PageState::kWriting;
          slots.push_back(residency_.take_for_write(entry));
        }
        return {};
      },
      [&](int64_t row, std::span<const std::byte> bytes) {
        return io_.write(slots[static_cast<size_t>(row)], bytes);
      });
  if (loaded.ok()) {
    adopt(key, *column, slots);
    return {};
  }
  const std::lock_guard lock(mutex_);
  if (slots.empty()) residency_.unreserve(num_rows);
  for (const auto& taken : slots) residency_.give_back(taken);
  return loaded;
}

Result<void> ColumnKeeper::take_table(PageColumn& column, const PrefixArchive::Table& table) const {
  const auto digests = column.digests();
  if (table.digests.size() != digests.size() ||
      std::ssize(table.checksums) != column.num_entries()) {
    return error(Errc::kInternal, "a column of {} pages kept as one of {}", column.num_entries(),
                 table.checksums.size());
  }
  std::ranges::copy(table.digests, digests.begin());
  for (size_t row = 0; row < table.checksums.size(); ++row) {
    column.entries()[row].checksum = table.checksums[row];
  }
  return {};
}

// Idle from here on. Another thread may have brought the same one.
void ColumnKeeper::adopt(const PageContentKey& key, PageColumn& column,
                         std::span<const PageSlots> slots) {
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
  column.sealed = true;
  column.num_requests = 1;
  cache_.insert(key, column);
  residency_.count_cached(column, 1);
  cache_.let_go(column);
}

}  // namespace millrace::kvstore
