// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiered_kv_store.h"

#include <algorithm>
#include <new>
#include <vector>

#include "common/checksum.h"
#include "common/log.h"
#include "common/units.h"
#include "kvstore/check_arguments.h"
#include "kvstore/held_columns.h"

namespace millrace::kvstore {
namespace {

// Whether a page that earlier requests have left keeps the worth that it has for them, although a
// request that begins with it gives it `priority`. It is worth more only if this one needs it much
// more, since each change is one of places in a queue of all pages; and less if it was one of the
// last of a prompt that others go on with.
bool keeps_worth(const PageEntry& page, const PagePriority& priority) {
  if (!page.scored) return false;
  const bool was_last = page.priority.keep == Keep::kWindow && page.column->num_requests == 1;
  return !was_last && !displaces(priority, page.priority);
}

int64_t num_on_disk(PageColumn& column) {
  return std::ranges::count_if(
      column.entries(), [](const PageEntry& page) { return page.slots.best() == Tier::kDisk; });
}

}  // namespace

TieredKvStore::TieredKvStore(const KvGeometry& geometry, TierStorages tiers, const Clock& clock,
                             bool promotes, int64_t read_bytes, int64_t read_ahead_bytes,
                             std::unique_ptr<PrefixArchive> archive)
    : geometry_(geometry),
      promotes_(promotes),
      io_(std::move(tiers), geometry.page_bytes()),
      residency_(io_.max_slots()),
      rising_(residency_, clock, !promotes && residency_.slots_total(Tier::kDevice) > 0),
      mover_(io_, residency_, mutex_),
      cache_log_([this](const PageContentKey& key) { return keeper_.will_have(key); }),
      cache_(cache_log_),
      disk_meter_(clock),
      kept_meter_(clock),
      cache_check_(io_, residency_, cache_, mutex_, disk_meter_),
      keeper_(std::move(archive), geometry, io_, residency_, cache_, mutex_, kept_meter_, clock,
              [this](int64_t num_pages, int64_t sequence) {
                return room_.reserve_for(num_pages, sequence);
              }),
      room_(io_, residency_, cache_, mutex_, keeper_, rows()),
      prefix_loader_(keeper_, residency_, cache_, mutex_, rows()),
      requests_(clock),
      read_path_(io_, residency_, rising_, requests_, cache_, mutex_, clock, read_bytes,
                 read_ahead_bytes) {}

TieredKvStore::~TieredKvStore() {
  MR_CHECK(residency_.reader_pins() == 0, "{} pages are pinned in a store that is being destroyed",
           residency_.reader_pins());
}

Result<void> TieredKvStore::begin_request(const std::string& request_id, int64_t num_tokens,
                                          std::span<const int64_t> pages,
                                          std::span<const CachedPage> prefix) {
  MR_RETURN_IF_ERROR(check_request(request_id, num_tokens, pages, geometry_));
  MR_RETURN_IF_ERROR(check_prefix(request_id, num_tokens, pages, prefix, geometry_));
  // No overflow: `pages` lies in memory, and rows is at most 2^24 (kv_store.cc).
  const int64_t num_pages = static_cast<int64_t>(pages.size()) * rows();
  // One request at a time, so that the room found is still there when it is reserved.
  const auto alone = room_.alone();
  Columns columns, gone;
  int64_t sequence = 0;
  const auto held_off = room_.hold_off_saving(num_pages + std::ssize(prefix) * rows());
  {
    std::lock_guard lock(mutex_);
    MR_RETURN_IF_ERROR(requests_.check_new(request_id));
    sequence = next_sequence_++;
    MR_ASSIGN_OR_RETURN(columns, take_prefix(request_id, prefix, sequence));
    if (!room_.make(num_pages, sequence + 1, StoreRoom::For::kRequest, gone)) {
      for (const auto& column : columns) release(*column);
      return room_.none_for(request_id, num_pages);
    }
  }
  gone.clear();
  auto begun = begin_after(request_id, num_tokens, pages, sequence, columns);
  if (begun.ok()) return begun;
  std::lock_guard lock(mutex_);
  for (const auto& column : columns) release(*column);
  return begun;
}

// `prefix` is already held for the request.
Result<void> TieredKvStore::begin_after(const std::string& request_id, int64_t num_tokens,
                                        std::span<const int64_t> pages, int64_t sequence,
                                        Columns prefix) {
  const int64_t num_pages = static_cast<int64_t>(pages.size()) * rows();
  MR_RETURN_IF_ERROR(room_.grow_disk(request_id, num_pages));
  MR_ASSIGN_OR_RETURN(auto table,
                      make_table(request_id, num_tokens, pages, sequence, std::move(prefix)));
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(room_.reserve(request_id, num_pages));
  requests_.add(std::move(table));
  return {};
}

Result<TieredKvStore::Columns> TieredKvStore::take_prefix(const std::string& request_id,
                                                          std::span<const CachedPage> prefix,
                                                          int64_t sequence) {
  Columns columns;
  for (const CachedPage& cached : prefix) {
    PageColumn* const column = cache_.find(cached.key);
    if (column == nullptr || column->page() != cached.page) {
      for (const auto& taken : columns) release(*taken);
      return error(Errc::kUnavailable, "request '{}': page {} is not remembered any more",
                   request_id, cached.page);
    }
    cache_.take(*column, sequence);
    columns.push_back(column->shared_from_this());
    rising_.begun_with(columns.back());
  }
  return columns;
}

void TieredKvStore::release(PageColumn& column) {
  if (cache_.release(column)) residency_.free(column);
}

// The records of a long prompt take gigabytes.
Result<std::shared_ptr<PageTable>> TieredKvStore::make_table(const std::string& request_id,
                                                             int64_t num_tokens,
                                                             std::span<const int64_t> pages,
                                                             int64_t sequence,
                                                             Columns prefix) const {
  try {
    return std::make_shared<PageTable>(request_id, geometry_, num_tokens, pages, sequence,
                                       std::move(prefix));
  } catch (const std::bad_alloc&) {
    return error(Errc::kExhausted, "request '{}': cannot allocate records of {} pages, {} each",
                 request_id, std::ssize(pages) * rows(), format_bytes(geometry_.record_bytes()));
  }
}

Result<void> TieredKvStore::open(const std::string& request_id, const std::string& lease_id) {
  std::lock_guard lock(mutex_);
  return requests_.open(request_id, lease_id);
}

// Takes the lock only twice, however many pages there are, because readers take it for each
// request.
Result<void> TieredKvStore::write_pages(const std::string& request_id, int32_t layer,
                                        int32_t kv_head, std::span<const int64_t> pages,
                                        std::span<const std::byte> kv, const PageDigest& digests,
                                        const DeviceHalves& on_device) {
  MR_RETURN_IF_ERROR(check_pages(request_id, std::ssize(pages), kv, digests, geometry_));
  MR_ASSIGN_OR_RETURN(auto writes, start_writes(request_id, layer, kv_head, pages));
  std::vector<PageSlots> slots;
  for (size_t i = 0; i < pages.size(); ++i) {
    auto& page = writes.pages[i];
    const auto page_bytes = static_cast<size_t>(geometry_.page_bytes());
    const auto bytes = kv.subspan(i * page_bytes, page_bytes);
    page.checksum = checksum(bytes);
    const auto head_dim = static_cast<size_t>(geometry_.head_dim);
    auto next = page.entry->column->digest_of(*page.entry).begin();
    for (const auto& values : {digests.min, digests.max, digests.radius}) {
      next = std::ranges::copy(values.subspan(i * head_dim, head_dim), next).out;
    }
    slots.push_back(page.slots);
  }
  std::vector<uint8_t> failed(pages.size());
  auto all_copied = io_.write_many(slots, kv, on_device, failed);
  for (size_t i = 0; i < pages.size(); ++i) writes.pages[i].copied = failed[i] == 0;
  finish_writes(writes);
  return all_copied;
}

Result<TieredKvStore::PageWrites> TieredKvStore::start_writes(const std::string& request_id,
                                                              int32_t layer, int32_t kv_head,
                                                              std::span<const int64_t> pages) {
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(auto table, requests_.find_running(request_id));
  MR_ASSIGN_OR_RETURN(const auto entries, table->select(layer, kv_head, pages));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i]->state == PageState::kUnwritten) continue;
    return error(Errc::kInvalidArgument, "request '{}': layer {} kv head {} page {} written twice",
                 request_id, layer, kv_head, pages[i]);
  }
  PageWrites writes{.table = std::move(table), .pages = {}};
  writes.pages.reserve(entries.size());
  for (PageEntry* entry : entries) {
    entry->state = PageState::kWriting;
    // If seal() moves no pages to the device, this page gets there now or never. Until its scores
    // come, it goes before all pages that carry no mass.
    if (!promotes_) entry->priority.share = 1;
    --writes.table->num_unwritten;
    writes.pages.push_back({.entry = entry, .slots = residency_.take_for_write(*entry)});
  }
  return writes;
}

void TieredKvStore::finish_writes(const PageWrites& writes) {
  std::lock_guard lock(mutex_);
  rising_.bus_used();
  PageTable& table = *writes.table;
  for (const auto& page : writes.pages) {
    PageEntry& entry = *page.entry;
    if (page.copied && !table.dead) {
      entry.checksum = page.checksum;
      entry.state = PageState::kWritten;
      residency_.settle(entry, page.slots);
      ++table.num_written;
      ++pages_written_;
      continue;
    }
    entry.state = PageState::kUnwritten;
    residency_.give_back(page.slots);
    if (table.dead) continue;
    ++table.num_unwritten;
    residency_.reserve(1);
  }
}

Result<void> TieredKvStore::set_scores(const std::string& request_id, int32_t layer,
                                       int32_t kv_head, std::span<const float> scores) {
  std::shared_ptr<PageTable> table;
  int64_t row = 0;
  {
    std::lock_guard lock(mutex_);
    MR_ASSIGN_OR_RETURN(table, requests_.find_running(request_id));
    MR_ASSIGN_OR_RETURN(row, table->row_of(layer, kv_head));
  }
  MR_RETURN_IF_ERROR(
      check_scores(request_id, layer, kv_head, scores, std::ssize(table->columns())));
  const auto ranks = rank_pages(layer, table->num_prompt_pages(), table->pages(), scores);
  std::lock_guard lock(mutex_);
  table->set_scores(row, scores);
  const auto num_prefix_pages = static_cast<size_t>(table->num_prefix_pages());
  for (size_t i = 0; i < ranks.size(); ++i) {
    // Most pages of a long prefix. Each of them would cost the time of a few cache misses, in all
    // layers and heads a tenth of a second for 131,072 tokens.
    const bool is_last_of_prefix = i + kWindowPages >= num_prefix_pages;
    if (ranks[i].keep == Keep::kRest && !is_last_of_prefix) continue;
    PageEntry& entry = table->columns()[i]->entry(row);
    PagePriority priority = ranks[i];
    priority.hits = entry.priority.hits;
    const bool keeps_its_worth = i < num_prefix_pages && keeps_worth(entry, priority);
    entry.scored = true;
    if (!keeps_its_worth) residency_.set_priority(entry, priority);
  }
  return {};
}

Result<void> TieredKvStore::set_prefix_scores(const std::string& request_id,
                                              std::span<const float> scores) {
  const std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(const auto table, requests_.find_running(request_id));
  if (!table->own_columns().empty()) {
    return error(Errc::kInvalidArgument, "request '{}' has pages of its own", request_id);
  }
  const int64_t num_pages = std::ssize(table->pages());
  if (std::ssize(scores) != rows() * num_pages) {
    return error(Errc::kInvalidArgument, "request '{}': {} scores of {} pages", request_id,
                 scores.size(), rows() * num_pages);
  }
  for (int64_t row = 0; row < rows(); ++row) {
    const auto of_row =
        scores.subspan(static_cast<size_t>(row * num_pages), static_cast<size_t>(num_pages));
    MR_RETURN_IF_ERROR(
        check_scores(request_id, static_cast<int32_t>(row / geometry_.num_kv_heads),
                     geometry_.first_kv_head + static_cast<int32_t>(row % geometry_.num_kv_heads),
                     of_row, num_pages));
    table->set_scores(row, of_row);
  }
  return {};
}

Result<std::unique_ptr<HeldPrefix>> TieredKvStore::hold_prefix(const std::string& request_id) {
  std::shared_ptr<PageTable> table;
  {
    const std::lock_guard lock(mutex_);
    MR_ASSIGN_OR_RETURN(table, requests_.find_running(request_id));
  }
  return std::unique_ptr<HeldPrefix>(
      std::make_unique<HeldColumns>(std::move(table), io_, residency_, mutex_));
}

// If another request or the cache holds the column too, it keeps the page for them.
Result<void> TieredKvStore::drop_pages(const std::string& request_id, int32_t layer,
                                       int32_t kv_head, std::span<const int64_t> pages) {
  if (pages.empty()) return {};
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(const auto table, requests_.find_running(request_id));
  if (requests_.is_open(request_id)) {
    return error(Errc::kInvalidArgument, "request '{}' is open: its pages may have been read",
                 request_id);
  }
  MR_ASSIGN_OR_RETURN(const auto entries, table->select(layer, kv_head, pages));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i]->state == PageState::kWritten) continue;
    return error(Errc::kInvalidArgument, "request '{}': layer {} kv head {} page {} is not written",
                 request_id, layer, kv_head, pages[i]);
  }
  for (PageEntry* page : entries) {
    table->drop(*page);
    if (page->column->num_requests == 1 && !page->column->content_key) residency_.free(*page);
  }
  pages_dropped_ += std::ssize(entries);
  return {};
}

Result<Placement> TieredKvStore::seal(const std::string& request_id, const std::string& lease_id,
                                      Duration lease) {
  MR_RETURN_IF_ERROR(LeaseTable::check_length(lease));
  std::shared_ptr<PageTable> table;
  {
    std::lock_guard lock(mutex_);
    MR_ASSIGN_OR_RETURN(table, requests_.find_running(request_id));
    MR_RETURN_IF_ERROR(requests_.check_seal(request_id, lease_id));
    if (table->num_written < table->num_entries()) {
      return error(Errc::kInvalidArgument, "request '{}': {} of {} pages are written", request_id,
                   table->num_written, table->num_entries());
    }
  }
  mover_.place(*table, promotes_);
  std::lock_guard lock(mutex_);
  if (table->dead) return error(Errc::kNotFound, "request '{}' was aborted", request_id);
  if (table->sealed) return error(Errc::kInvalidArgument, "request '{}' is sealed", request_id);
  requests_.seal(*table, lease_id, lease);
  Placement placement;
  for (int64_t place = 0; place < std::ssize(table->columns()); ++place) {
    PageColumn& column = *table->columns()[static_cast<size_t>(place)];
    column.sealed = true;
    for (int64_t row = 0; row < rows(); ++row) {
      if (!table->is_dropped(row, place)) ++placement.pages[column.entry(row).slots.best()];
    }
  }
  return placement;
}

Result<int64_t> TieredKvStore::remember(const std::string& request_id,
                                        std::span<const CachedPage> pages, double cost,
                                        std::shared_ptr<const CachedPrompt> prompt) {
  Columns gone;
  std::lock_guard lock(mutex_);
  auto num_new = remember_pages(request_id, pages, cost, gone);
  if (num_new.ok() && prompt != nullptr) cache_log_.remembered(std::move(prompt));
  if (num_new.ok()) return num_new;
  // Others may believe that this rank has them.
  for (const CachedPage& lost : pages) {
    if (!is_cached(lost.key)) cache_log_.left(lost.key);
  }
  return num_new;
}

Result<int64_t> TieredKvStore::remember_pages(const std::string& request_id,
                                              std::span<const CachedPage> pages, double cost,
                                              Columns& gone) {
  MR_ASSIGN_OR_RETURN(const auto found, requests_.find_sealed(request_id));
  const PageTable& table = *found;
  if (table.num_dropped() > 0) {
    return error(Errc::kInvalidArgument, "request '{}' has dropped {} pages", request_id,
                 table.num_dropped());
  }
  int64_t num_new = 0;
  for (const CachedPage& cached : pages) {
    const auto place = std::ranges::lower_bound(table.pages(), cached.page);
    if (place == table.pages().end() || *place != cached.page) {
      return error(Errc::kNotFound, "request '{}': page {} is not held", request_id, cached.page);
    }
    PageColumn& column = *table.columns()[static_cast<size_t>(place - table.pages().begin())];
    if (!column.content_key) forget_slower(cached.key, column, gone);
    if (PageColumn* const known = cache_.find(cached.key); known != nullptr) {
      cache_.touch(*known, table.sequence());
      cache_.raise_cost(*known, cost);
    } else if (!column.content_key) {
      cache_.insert(cached.key, column);
      cache_.touch(column, table.sequence());
      residency_.count_cached(column, 1);
      keeper_.remembered(cached.key);
      ++num_new;
    }
  }
  // Also for the columns that the request began with: none may be worth less than those that follow
  // it.
  for (const auto& column : table.columns()) {
    if (column->content_key) cache_.raise_cost(*column, cost);
  }
  return num_new;
}

void TieredKvStore::advance_eviction_clock(double clock) {
  const std::lock_guard lock(mutex_);
  cache_.advance_clock(clock);
}

std::vector<bool> TieredKvStore::find_cached(std::span<const PageContentKey> keys) const {
  std::lock_guard lock(mutex_);
  std::vector<bool> found;
  for (const auto& key : keys) found.push_back(is_cached(key));
  return found;
}

CacheNews TieredKvStore::read_cache_log(int64_t from) {
  const std::lock_guard lock(mutex_);
  for (const auto& key : keeper_.take_forgotten()) {
    if (!is_cached(key)) cache_log_.left(key);
  }
  auto news = cache_log_.read(from);
  return news ? *std::move(news) : all_cached();
}

int64_t TieredKvStore::cache_log_end() const {
  const std::lock_guard lock(mutex_);
  return cache_log_.end();
}

CacheNews TieredKvStore::all_cached() const {
  CacheNews all{.changes = {}, .is_whole = true, .end = cache_log_.end()};
  for (const auto& [key, column] : cache_.columns()) all.changes.push_back({.key = key});
  for (const auto& key : keeper_.all()) {
    if (cache_.find(key) == nullptr) all.changes.push_back({.key = key});
  }
  return all;
}

// A page on disk is computed again if that is faster than loading it. The new column takes its
// place, so that the next prompt need not do so too.
void TieredKvStore::forget_slower(const PageContentKey& key, PageColumn& again, Columns& gone) {
  PageColumn* const known = cache_.find(key);
  if (known == nullptr || known->num_requests > 0) return;
  if (num_on_disk(*known) <= num_on_disk(again)) return;
  residency_.count_cached(*known, -1);
  cache_replacements_ += known->num_entries();
  gone.push_back(cache_.remove(*known));
  residency_.free(*known);
}

// A prompt may have thousands of pages with hundreds of entries each, so the lock is taken for one
// page at a time.
std::vector<CachedPlace> TieredKvStore::place_cached(std::span<const PageContentKey> keys) const {
  std::vector<CachedPlace> places;
  places.reserve(keys.size());
  for (const auto& key : keys) {
    const std::lock_guard lock(mutex_);
    PageColumn* const column = cache_.find(key);
    if (column == nullptr) {
      const bool kept = keeper_.has(key) && keeper_.answers();
      places.push_back({.held = kept, .kept = kept});
      continue;
    }
    places.push_back({.held = true});
    if (residency_.slots_used(Tier::kDisk) == 0) continue;
    places.back().share_on_disk =
        static_cast<double>(num_on_disk(*column)) / static_cast<double>(column->num_entries());
  }
  return places;
}

ReadRates TieredKvStore::read_rates() const {
  return {.disk = disk_meter_.bytes_per_s(), .kept = kept_meter_.bytes_per_s()};
}

std::vector<bool> TieredKvStore::check_cached(std::span<const PageContentKey> keys,
                                              CacheCheck check, Duration kept_patience) {
  int64_t sequence = 0;  // of the coming request
  {
    std::lock_guard lock(mutex_);
    sequence = next_sequence_;
  }
  keeper_.bring(keys, sequence, kept_patience);
  return cache_check_.check(keys, check);
}

void TieredKvStore::abort(const std::string& request_id) {
  std::shared_ptr<PageTable> gone;
  std::lock_guard lock(mutex_);
  gone = forget(request_id, LeaseEnd::kAborted);
}

std::shared_ptr<PageTable> TieredKvStore::forget(const std::string& request_id, LeaseEnd why) {
  auto table = requests_.remove(request_id, why);
  if (table == nullptr) return nullptr;
  read_path_.forget(*table);
  residency_.unreserve(table->num_unwritten);
  for (const auto& column : table->columns()) release(*column);
  return table;
}

bool TieredKvStore::tend(Deadline deadline) {
  if (read_path_.read_ahead() || mover_.rise() || lift() || keeper_.save_next(deadline))
    return true;
  if (prefix_loader_.next()) return true;
  read_path_.wait_for_reader(deadline);
  return false;
}

bool TieredKvStore::lift() {
  {
    const std::lock_guard lock(mutex_);
    if (!rising_.bus_rests()) return false;
    if (rising_.count_prefix()) return true;
    if (!rising_.lifts()) return false;
  }
  return mover_.lift(rising_);
}

bool TieredKvStore::knows_lease(std::string_view lease_id) const {
  std::lock_guard lock(mutex_);
  return requests_.leases().knows(lease_id);
}

Result<void> TieredKvStore::renew_lease(const std::string& request_id, const std::string& lease_id,
                                        Duration lease, Duration waited) {
  std::lock_guard lock(mutex_);
  return requests_.renew(request_id, lease_id, lease, waited);
}

Result<void> TieredKvStore::release_lease(const std::string& request_id,
                                          const std::string& lease_id) {
  std::shared_ptr<PageTable> gone;
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(requests_.check_release(request_id, lease_id));
  gone = forget(request_id, LeaseEnd::kReleased);
  return {};
}

int64_t TieredKvStore::expire_leases() {
  std::vector<std::shared_ptr<PageTable>> gone;
  {
    std::lock_guard lock(mutex_);
    for (const std::string& request_id : requests_.leases().expired_requests()) {
      gone.push_back(forget(request_id, LeaseEnd::kExpired));
    }
  }
  room_.shrink_disk();
  read_path_.cool_pages();
  return std::ssize(gone);
}

KvStoreStats TieredKvStore::stats() const {
  std::lock_guard lock(mutex_);
  KvStoreStats stats;
  stats.page_hits = read_path_.page_hits();
  for (const Tier tier : kTiers) {
    stats.tiers[tier] = {.slots_total = residency_.slots_total(tier),
                         .slots_used = residency_.slots_used(tier),
                         .slots_cached = residency_.cached_slots()[tier],
                         .slot_bytes = io_.page_bytes()};
  }
  stats.pages_available = room_.available();
  stats.cached_pages = cache_.num_columns() * rows();
  stats.idle_cached_pages = room_.idle_pages();
  const auto kept = keeper_.stats();
  stats.cache_evictions = room_.evictions();
  stats.cache_evictions.in_files = kept.evictions * rows();
  stats.cache_replacements = cache_replacements_;
  stats.eviction_clock = cache_.most_given_up();
  stats.disk_checks = disk_meter_.totals();
  stats.kept_reads = kept_meter_.totals();
  stats.cache_corruptions = cache_check_.num_damaged() + kept.damaged;
  stats.kept_pages = kept.columns * rows();
  stats.kept_bytes = kept.columns * kept.slot_bytes;
  stats.pages_kept = kept.saved * rows();
  stats.pages_restored = keeper_.num_restored() * rows();
  stats.late_restores = keeper_.num_late();
  stats.requests = static_cast<int64_t>(requests_.tables().size());
  for (const auto& [id, table] : requests_.tables()) {
    const bool waits = table->sealed && !table->has_been_read;
    if (waits) stats.unread_pages += table->num_entries() - table->num_dropped();
  }
  stats.leases_active = requests_.leases().active();
  stats.leases_expired = requests_.leases().expired();
  stats.pages_written = pages_written_;
  stats.pages_dropped = pages_dropped_;
  stats.evictions = residency_.evictions();
  stats.moves = residency_.moves();
  stats.read_ahead_pages = read_path_.pages_read_ahead();
  stats.read_ahead_hits = read_path_.pages_taken();
  stats.pinned_pages = residency_.reader_pins();
  return stats;
}

}  // namespace millrace::kvstore
