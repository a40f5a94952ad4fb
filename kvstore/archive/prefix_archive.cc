// SPDX-License-Identifier: Apache-2.0
#include "kvstore/archive/prefix_archive.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <ranges>
#include <utility>

#include "common/aligned_buffer.h"
#include "common/checksum.h"
#include "common/log.h"
#include "common/units.h"

namespace millrace::kvstore {

bool PrefixArchive::GoesFirst::operator()(const Slot* a, const Slot* b) const {
  if (a->record.used != b->record.used) return a->record.used < b->record.used;
  if (a->record.page != b->record.page) return a->record.page > b->record.page;
  return a->slot < b->slot;
}

Result<std::unique_ptr<PrefixArchive>> PrefixArchive::open(const Options& options,
                                                           const ArchiveLayout& layout) {
  const int64_t max_slots = options.max_bytes / (layout.slot_bytes() + kArchiveRecordBytes);
  if (max_slots == 0) {
    return error(Errc::kInvalidArgument, "{} hold not one page of all layers and heads, {}",
                 format_bytes(options.max_bytes), format_bytes(layout.slot_bytes()));
  }
  MR_ASSIGN_OR_RETURN(auto files, ArchiveFiles::open({.directory = options.directory,
                                                      .name = options.name,
                                                      .identity = options.identity,
                                                      .slot_bytes = layout.slot_bytes(),
                                                      .max_slots = max_slots,
                                                      .lock_patience = options.lock_patience}));
  return std::unique_ptr<PrefixArchive>(new PrefixArchive(std::move(files), layout, max_slots));
}

PrefixArchive::PrefixArchive(ArchiveFiles files, const ArchiveLayout& layout, int64_t max_slots)
    : layout_(layout), files_(std::move(files)), max_slots_(max_slots) {
  adopt_found();
}

// A power cut may leave two slots with one key: the one used last counts.
void PrefixArchive::adopt_found() {
  auto found = files_.found();
  files_.forget_found();
  std::ranges::sort(found,
                    [](const auto& a, const auto& b) { return a.record.used > b.record.used; });
  std::vector<bool> taken(static_cast<size_t>(files_.num_slots()));
  for (const auto& [slot, record] : found) {
    const auto [entry, is_new] = columns_.try_emplace(record.key);
    if (!is_new) continue;
    entry->second = std::make_unique<Slot>(Slot{.slot = slot, .record = record});
    by_use_.insert(entry->second.get());
    taken[static_cast<size_t>(slot)] = true;
    first_use_ = std::max(first_use_, record.used + 1);
  }
  for (int64_t slot = files_.num_slots() - 1; slot >= 0; --slot) {
    if (!taken[static_cast<size_t>(slot)]) free_.push_back(slot);
  }
}

Result<void> PrefixArchive::save(const Column& column, const PageOf& page_of) {
  {
    const std::lock_guard lock(mutex_);
    if (columns_.contains(column.key) || !writing_.insert(column.key).second) return {};
  }
  const auto slot = take_slot(column);
  if (!slot) {
    const std::lock_guard lock(mutex_);
    writing_.erase(column.key);
    return {};
  }
  step(Step::kSlotTaken);
  const auto written = write(*slot, column, page_of);
  const std::lock_guard lock(mutex_);
  writing_.erase(column.key);
  if (!written.ok()) {
    free_.push_back(*slot);
    return written.error();
  }
  auto& kept = columns_[column.key];
  kept = std::make_unique<Slot>(Slot{.slot = *slot, .record = *written});
  by_use_.insert(kept.get());
  ++stats_.saved;
  return {};
}

Result<ArchiveRecord> PrefixArchive::write(int64_t slot, const Column& column,
                                           const PageOf& page_of) {
  MR_RETURN_IF_ERROR(files_.clear_record(slot));
  for (int64_t row = 0; row < layout_.num_rows; ++row) {
    MR_ASSIGN_OR_RETURN(const auto bytes, page_of(row));
    MR_RETURN_IF_ERROR(files_.write(slot, layout_.page_at(row), bytes));
    step(Step::kPageWritten);
  }
  std::vector<std::byte> table;
  for (const auto part : {std::as_bytes(column.digests), std::as_bytes(column.checksums)}) {
    table.insert(table.end(), part.begin(), part.end());
  }
  MR_CHECK(std::ssize(table) == layout_.table_bytes(), "a table of {} bytes, not {}", table.size(),
           layout_.table_bytes());
  MR_RETURN_IF_ERROR(files_.write(slot, layout_.table_at(), table));
  step(Step::kTableWritten);
  const ArchiveRecord record{.key = column.key,
                             .page = column.page,
                             .used = use_of(column.sequence),
                             .table_checksum = checksum(table)};
  MR_RETURN_IF_ERROR(files_.write_record(slot, record));
  step(Step::kRecordWritten);
  return record;
}

std::optional<int64_t> PrefixArchive::take_slot(const Column& column) {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) return take_free();
  }
  if (const auto slot = take_from_disk()) return slot;
  const std::lock_guard lock(mutex_);
  return take_from_other(column);
}

int64_t PrefixArchive::take_free() {
  const int64_t slot = free_.back();
  free_.pop_back();
  return slot;
}

std::optional<int64_t> PrefixArchive::take_from_disk() {
  const std::lock_guard growing(growing_);
  if (files_.num_slots() >= max_slots_) return std::nullopt;
  const int64_t slot = files_.num_slots();
  step(Step::kFileGrows);
  const auto added = files_.add_slot();
  if (added.ok()) return slot;
  log::warn("no more than {} of cached prefixes are kept for the next start: {}",
            format_bytes(slot * layout_.slot_bytes()), added.error().message);
  max_slots_ = slot;
  return std::nullopt;
}

std::optional<int64_t> PrefixArchive::take_from_other(const Column& column) {
  if (!free_.empty()) return take_free();
  const auto first =
      std::ranges::find_if(by_use_, [](const Slot* slot) { return slot->num_readers == 0; });
  if (first == by_use_.end()) return std::nullopt;
  // A column that would itself go next is not worth the place of another.
  const Slot as_kept{.slot = 0, .record = {.page = column.page, .used = use_of(column.sequence)}};
  if (GoesFirst()(&as_kept, *first)) return std::nullopt;
  ++stats_.evictions;
  forget(**first);
  return take_free();
}

void PrefixArchive::forget(Slot& slot) {
  by_use_.erase(&slot);
  free_.push_back(slot.slot);
  forgotten_.push_back(slot.record.key);
  columns_.erase(PageContentKey(slot.record.key));  // destroys `slot`
}

Result<void> PrefixArchive::load(const PageContentKey& key, const OnTable& on_table,
                                 const OnPage& on_page) {
  Slot* const slot = hold(key);
  if (slot == nullptr) return error(Errc::kNotFound, "not among the prefixes that were kept");
  bool damaged = false;
  auto loaded = read(*slot, on_table, on_page, damaged);
  if (damaged) {
    // If this fails, the column is found damaged again after the next start, which does no harm.
    const auto cleared = files_.clear_record(slot->slot);
    if (!cleared.ok()) log::debug("{}", cleared.error().to_string());
  }
  release(*slot, damaged);
  return loaded;
}

Result<void> PrefixArchive::read(const Slot& slot, const OnTable& on_table, const OnPage& on_page,
                                 bool& damaged) const {
  damaged = true;
  const auto differs = [&slot](const std::string& what) {
    return error(Errc::kCorrupt, "slot {}, page {} of its prompt: {} not what was written",
                 slot.slot, slot.record.page, what);
  };
  AlignedBuffer table(layout_.table_bytes());
  const std::span bytes(table.as<std::byte>(), static_cast<size_t>(layout_.table_bytes()));
  MR_RETURN_IF_ERROR(files_.read(slot.slot, layout_.table_at(), bytes));
  if (checksum(bytes) != slot.record.table_checksum) return differs("its table is");
  const auto num_rows = static_cast<size_t>(layout_.num_rows);
  const auto num_floats = num_rows * static_cast<size_t>(layout_.digest_bytes) / sizeof(float);
  // The length of the digests need not be a multiple of 8.
  std::vector<uint64_t> checksums(num_rows);
  std::memcpy(checksums.data(), bytes.data() + num_floats * sizeof(float),
              num_rows * sizeof(uint64_t));
  damaged = false;
  MR_RETURN_IF_ERROR(on_table({.page = slot.record.page,
                               .digests = {table.as<float>(), num_floats},
                               .checksums = checksums}));
  AlignedBuffer memory(layout_.page_bytes);
  const std::span page(memory.as<std::byte>(), static_cast<size_t>(layout_.page_bytes));
  for (size_t row = 0; row < num_rows; ++row) {
    const auto number = static_cast<int64_t>(row);
    step(Step::kPageAhead);
    damaged = true;
    MR_RETURN_IF_ERROR(files_.read(slot.slot, layout_.page_at(number), page));
    if (checksum(page) != checksums[row]) return differs(fmt::format("row {} is", row));
    damaged = false;
    MR_RETURN_IF_ERROR(on_page(number, page));
  }
  return {};
}

PrefixArchive::Slot* PrefixArchive::hold(const PageContentKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = columns_.find(key);
  if (found == columns_.end()) return nullptr;
  ++found->second->num_readers;
  return found->second.get();
}

// A damaged column that others are reading stays until the last of them is done.
void PrefixArchive::release(Slot& slot, bool damaged) {
  const std::lock_guard lock(mutex_);
  --slot.num_readers;
  if (!damaged || slot.num_readers > 0) return;
  ++stats_.damaged;
  forget(slot);
}

bool PrefixArchive::contains(const PageContentKey& key) const {
  const std::lock_guard lock(mutex_);
  return columns_.contains(key);
}

// The slot is held meanwhile, so that it still has this record when the record is written.
void PrefixArchive::touch(const PageContentKey& key, int64_t sequence) {
  Slot* const slot = hold(key);
  if (slot == nullptr) return;
  ArchiveRecord record;
  {
    const std::lock_guard lock(mutex_);
    by_use_.erase(slot);
    slot->record.used = std::max(slot->record.used, use_of(sequence));
    record = slot->record;
    by_use_.insert(slot);
  }
  if (const auto written = files_.write_record(slot->slot, record); !written.ok()) {
    log::debug("{}", written.error().to_string());
  }
  release(*slot, /*damaged=*/false);
}

std::vector<PrefixArchive::Use> PrefixArchive::by_use() const {
  const std::lock_guard lock(mutex_);
  std::vector<Use> uses;
  uses.reserve(by_use_.size());
  for (const Slot* const slot : by_use_ | std::views::reverse) {
    uses.push_back({slot->record.key, static_cast<int64_t>(slot->record.used - first_use_)});
  }
  return uses;
}

std::vector<PageContentKey> PrefixArchive::take_forgotten() {
  const std::lock_guard lock(mutex_);
  return std::exchange(forgotten_, {});
}

ArchiveStats PrefixArchive::stats() const {
  const std::lock_guard lock(mutex_);
  ArchiveStats stats = stats_;
  stats.columns = std::ssize(columns_);
  stats.slot_bytes = layout_.slot_bytes();
  return stats;
}

}  // namespace millrace::kvstore
