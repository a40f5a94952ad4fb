#include "kvstore/tiered_kv_store.h"

#include <algorithm>
#include <new>
#include <vector>

#include "common/checksum.h"
#include "common/log.h"
#include "common/units.h"
#include "kvstore/check_arguments.h"

namespace millrace::kvstore {
namespace {

constexpr size_t kMaxRequests = 65536;

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
      read_budget_(read_bytes),
      clock_(clock),
      residency_(io_.max_slots()),
      mover_(io_, residency_, mutex_),
      read_ahead_(io_, residency_, mutex_, clock, read_ahead_bytes),
      disk_meter_(clock),
      kept_meter_(clock),
      cache_check_(io_, residency_, cache_, mutex_, disk_meter_),
      keeper_(std::move(archive), geometry, io_, residency_, cache_, mutex_, kept_meter_, clock,
              [this](int64_t num_pages, int64_t sequence) {
                return room_.reserve_for(num_pages, sequence);
              }),
      room_(io_, residency_, cache_, mutex_, keeper_, rows()),
      leases_(clock),
      cooled_at_(clock.now()) {}

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
  // One at a time, so that the room found is still there when it is taken.
  const auto alone = room_.alone();
  Columns columns, gone;
  int64_t sequence = 0;
  const auto held_off = room_.hold_off_saving(num_pages + std::ssize(prefix) * rows());
  {
    std::lock_guard lock(mutex_);
    if (tables_.contains(request_id)) {
      return error(Errc::kInvalidArgument, "request '{}' already exists", request_id);
    }
    if (tables_.size() >= kMaxRequests) {
      return error(Errc::kExhausted, "request '{}': the store holds {} requests, the limit",
                   request_id, kMaxRequests);
    }
    sequence = next_sequence_++;
    MR_ASSIGN_OR_RETURN(columns, take_prefix(request_id, prefix, sequence));
    if (!room_.make(num_pages, sequence + 1, gone)) {
      for (const auto& column : columns) let_go(*column);
      return room_.none_for(request_id, num_pages);
    }
  }
  gone.clear();
  auto begun = begin_after(request_id, num_tokens, pages, sequence, columns);
  if (begun.ok()) return begun;
  std::lock_guard lock(mutex_);
  for (const auto& column : columns) let_go(*column);
  return begun;
}

// `prefix` is held for the request.
Result<void> TieredKvStore::begin_after(const std::string& request_id, int64_t num_tokens,
                                        std::span<const int64_t> pages, int64_t sequence,
                                        Columns prefix) {
  const int64_t num_pages = static_cast<int64_t>(pages.size()) * rows();
  MR_RETURN_IF_ERROR(room_.grow_disk(request_id, num_pages));
  MR_ASSIGN_OR_RETURN(auto table,
                      make_table(request_id, num_tokens, pages, sequence, std::move(prefix)));
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(room_.reserve(request_id, num_pages));
  leases_.forget_end(request_id);
  tables_.emplace(request_id, std::move(table));
  return {};
}

Result<TieredKvStore::Columns> TieredKvStore::take_prefix(const std::string& request_id,
                                                          std::span<const CachedPage> prefix,
                                                          int64_t sequence) {
  Columns columns;
  for (const CachedPage& cached : prefix) {
    PageColumn* const column = cache_.find(cached.key);
    if (column == nullptr || column->page() != cached.page) {
      for (const auto& taken : columns) let_go(*taken);
      return error(Errc::kUnavailable, "request '{}': page {} is not remembered any more",
                   request_id, cached.page);
    }
    cache_.take(*column, sequence);
    columns.push_back(column->shared_from_this());
  }
  return columns;
}

void TieredKvStore::let_go(PageColumn& column) {
  if (cache_.let_go(column)) residency_.free(column);
}

// Records of a long prompt are gigabytes.
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

Result<std::shared_ptr<PageTable>> TieredKvStore::find_running(
    const std::string& request_id) const {
  const auto found = tables_.find(request_id);
  if (found == tables_.end()) {
    return error(Errc::kNotFound, "request '{}' is unknown", request_id);
  }
  if (found->second->sealed) {
    return error(Errc::kInvalidArgument, "request '{}' is sealed", request_id);
  }
  return found->second;
}

Result<void> TieredKvStore::open(const std::string& request_id, const std::string& lease_id) {
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(find_running(request_id));
  if (leases_.holds(request_id)) {
    return error(Errc::kInvalidArgument, "request '{}' is open", request_id);
  }
  leases_.open(request_id, lease_id);
  return {};
}

// The lock is taken twice, however many pages there are: readers take it for each of their requests.
Result<void> TieredKvStore::write_pages(const std::string& request_id, int32_t layer,
                                        int32_t kv_head, std::span<const int64_t> pages,
                                        std::span<const std::byte> kv, const PageDigest& digests) {
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
  auto all_copied = io_.write_many(slots, kv, failed);
  for (size_t i = 0; i < pages.size(); ++i) writes.pages[i].copied = failed[i] == 0;
  finish_writes(writes);
  return all_copied;
}

Result<TieredKvStore::PageWrites> TieredKvStore::start_writes(const std::string& request_id,
                                                              int32_t layer, int32_t kv_head,
                                                              std::span<const int64_t> pages) {
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(auto table, find_running(request_id));
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
    // Where seal() brings no page to the device, it comes there now or never: until its scores are there
    // it goes before all pages that carry no mass.
    if (!promotes_) entry->priority.share = 1;
    --writes.table->num_unwritten;
    writes.pages.push_back({.entry = entry, .slots = residency_.take_for_write(*entry)});
  }
  return writes;
}

void TieredKvStore::finish_writes(const PageWrites& writes) {
  std::lock_guard lock(mutex_);
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

// A page that other requests hold too is worth what it is worth to the one that needs it most.
Result<void> TieredKvStore::set_scores(const std::string& request_id, int32_t layer,
                                       int32_t kv_head, std::span<const float> scores) {
  std::shared_ptr<PageTable> table;
  std::vector<PageEntry*> entries;
  int64_t row = 0;
  {
    std::lock_guard lock(mutex_);
    MR_ASSIGN_OR_RETURN(table, find_running(request_id));
    MR_ASSIGN_OR_RETURN(row, table->row_of(layer, kv_head));
    MR_ASSIGN_OR_RETURN(entries, table->head(layer, kv_head));
  }
  MR_RETURN_IF_ERROR(check_scores(request_id, layer, kv_head, scores, std::ssize(entries)));
  const auto ranks = rank_pages(layer, table->num_prompt_pages(), table->pages(), scores);
  std::lock_guard lock(mutex_);
  table->set_scores(row, scores);
  for (size_t i = 0; i < entries.size(); ++i) {
    PageEntry& entry = *entries[i];
    PagePriority priority = ranks[i];
    priority.hits = entry.priority.hits;
    if (entry.scored && entry.column->num_requests > 1) {
      priority = std::max(priority, entry.priority);
    }
    entry.scored = true;
    residency_.set_priority(entry, priority);
  }
  return {};
}

// A column that another request or the cache holds too keeps the page for them.
Result<void> TieredKvStore::drop_pages(const std::string& request_id, int32_t layer,
                                       int32_t kv_head, std::span<const int64_t> pages) {
  if (pages.empty()) return {};
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(const auto table, find_running(request_id));
  if (leases_.holds(request_id)) {
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
    MR_ASSIGN_OR_RETURN(table, find_running(request_id));
    if (leases_.holds(request_id)) MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
    if (table->num_written < table->num_entries()) {
      return error(Errc::kInvalidArgument, "request '{}': {} of {} pages are written", request_id,
                   table->num_written, table->num_entries());
    }
  }
  mover_.place(*table, promotes_);
  std::lock_guard lock(mutex_);
  if (table->dead) return error(Errc::kNotFound, "request '{}' was aborted", request_id);
  if (table->sealed) return error(Errc::kInvalidArgument, "request '{}' is sealed", request_id);
  table->sealed = true;
  leases_.grant(request_id, lease_id, lease);
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
                                        std::span<const CachedPage> pages) {
  Columns gone;
  std::lock_guard lock(mutex_);
  const auto found = tables_.find(request_id);
  if (found == tables_.end() || !found->second->sealed) {
    return error(Errc::kNotFound, "request '{}' is not sealed", request_id);
  }
  const PageTable& table = *found->second;
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
    } else if (!column.content_key) {
      cache_.insert(cached.key, column);
      residency_.count_cached(column, 1);
      keeper_.remembered(cached.key);
      ++num_new;
    }
  }
  return num_new;
}

std::vector<bool> TieredKvStore::find_cached(std::span<const PageContentKey> keys) const {
  std::lock_guard lock(mutex_);
  std::vector<bool> found;
  for (const auto& key : keys) found.push_back(cache_.find(key) != nullptr || keeper_.has(key));
  return found;
}

// A page on disk is computed again where that is faster than to load it: the next prompt need not do so too.
void TieredKvStore::forget_slower(const PageContentKey& key, PageColumn& again, Columns& gone) {
  PageColumn* const known = cache_.find(key);
  if (known == nullptr || known->num_requests > 0) return;
  if (num_on_disk(*known) <= num_on_disk(again)) return;
  residency_.count_cached(*known, -1);
  gone.push_back(cache_.remove(*known));
  residency_.free(*known);
}

// A prompt may have thousands of pages, of hundreds of entries each: the lock is taken for one at a time.
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
  int64_t sequence = 0;  // of the request that is to come
  {
    std::lock_guard lock(mutex_);
    sequence = next_sequence_;
  }
  keeper_.bring(keys, sequence, kept_patience);
  return cache_check_.check(keys, check);
}

Result<std::unique_ptr<PinnedPages>> TieredKvStore::pin_prefix(const std::string& request_id,
                                                               int32_t layer, int32_t kv_head,
                                                               std::span<const int64_t> pages) {
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(auto table, find_running(request_id));
  MR_ASSIGN_OR_RETURN(auto entries, table->select(layer, kv_head, pages));
  for (PageEntry* page : entries) {
    if (page->state == PageState::kWritten) continue;
    return error(Errc::kInvalidArgument, "request '{}': page {} is not of its prefix", request_id,
                 page->column->page());
  }
  return std::unique_ptr<PinnedPages>(hold_pages(std::move(table), std::move(entries)));
}

void TieredKvStore::abort(const std::string& request_id) {
  std::shared_ptr<PageTable> gone;
  std::lock_guard lock(mutex_);
  gone = forget(request_id, LeaseEnd::kAborted);
}

std::shared_ptr<PageTable> TieredKvStore::forget(const std::string& request_id, LeaseEnd why) {
  const auto found = tables_.find(request_id);
  if (found == tables_.end()) return nullptr;
  auto table = std::move(found->second);
  tables_.erase(found);
  table->dead = true;
  read_ahead_.forget(*table);
  residency_.unreserve(table->num_unwritten);
  for (const auto& column : table->columns()) let_go(*column);
  leases_.end(request_id, why);
  return table;
}

Result<std::unique_ptr<PinnedPages>> TieredKvStore::pin_pages(const std::string& request_id,
                                                              const std::string& lease_id,
                                                              int32_t layer, int32_t kv_head,
                                                              std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(auto pins, pin_in_place(request_id, lease_id, layer, kv_head, pages));
  MR_RETURN_IF_ERROR(pins->load());
  return pins;
}

Result<std::unique_ptr<PinnedPages>> TieredKvStore::pin_in_place(const std::string& request_id,
                                                                 const std::string& lease_id,
                                                                 int32_t layer, int32_t kv_head,
                                                                 std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(auto pins, hold(request_id, lease_id, layer, kv_head, pages));
  follow(*pins);
  pins->count_in_place();
  return std::unique_ptr<PinnedPages>(std::move(pins));
}

Result<std::unique_ptr<PinnedPages>> TieredKvStore::pin_digests(const std::string& request_id,
                                                                const std::string& lease_id,
                                                                int32_t layer, int32_t kv_head,
                                                                std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(auto pins, hold(request_id, lease_id, layer, kv_head, pages));
  return std::unique_ptr<PinnedPages>(std::move(pins));
}

Result<std::unique_ptr<Pins>> TieredKvStore::hold(const std::string& request_id,
                                                  const std::string& lease_id, int32_t layer,
                                                  int32_t kv_head, std::span<const int64_t> pages) {
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
  const auto& table = tables_.at(request_id);
  MR_ASSIGN_OR_RETURN(auto entries, table->select(layer, kv_head, pages));
  MR_RETURN_IF_ERROR(table->check_readable(entries));
  return hold_pages(table, std::move(entries));
}

std::unique_ptr<Pins> TieredKvStore::hold_pages(std::shared_ptr<PageTable> table,
                                                std::vector<PageEntry*> entries) {
  residency_.pin_for_reader(entries);
  return std::make_unique<Pins>(
      Pins::Source{.io = io_,
                   .budget = read_budget_,
                   .read_ahead = [this, of = table.get()](
                                     const PageEntry& page) { return take_read_ahead(*of, page); },
                   .count = [this](auto held, auto found) { count_hits(held, found); }},
      std::move(table), std::move(entries),
      [this](std::span<PageEntry* const> held) { unpin(held); });
}

// A long prompt has hundreds of thousands of pages: the lock is taken for one head at a time.
Result<std::vector<float>> TieredKvStore::scores(const std::string& request_id,
                                                 const std::string& lease_id,
                                                 const HeadBlock& heads) const {
  if (heads.num_layers <= 0 || heads.num_kv_heads <= 0) {
    return error(Errc::kInvalidArgument, "request '{}': scores of {} layers, {} kv heads",
                 request_id, heads.num_layers, heads.num_kv_heads);
  }
  std::vector<float> scores;
  for (int32_t layer = 0; layer < heads.num_layers; ++layer) {
    for (int32_t head = 0; head < heads.num_kv_heads; ++head) {
      const std::lock_guard lock(mutex_);
      MR_RETURN_IF_ERROR(append_scores(request_id, lease_id, heads.first_layer + layer,
                                       heads.first_kv_head + head, scores));
    }
  }
  return scores;
}

Result<void> TieredKvStore::append_scores(const std::string& request_id,
                                          const std::string& lease_id, int32_t layer,
                                          int32_t kv_head, std::vector<float>& scores) const {
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
  const auto& table = tables_.at(request_id);
  MR_ASSIGN_OR_RETURN(const int64_t row, table->row_of(layer, kv_head));
  MR_ASSIGN_OR_RETURN(const auto pages, table->head(layer, kv_head));
  MR_RETURN_IF_ERROR(table->check_readable(pages));
  const auto of_row = table->scores(row);
  scores.insert(scores.end(), of_row.begin(), of_row.end());
  return {};
}

void TieredKvStore::follow(const Pins& pins) {
  if (residency_.slots_total(Tier::kDisk) == 0) return;
  std::lock_guard lock(mutex_);
  PageTable& table = pins.table();
  if (!table.dead) read_ahead_.follow(table, pins.entries());
  if (read_ahead_.has_targets()) reader_came_.notify_one();
}

std::optional<ReadMemory> TieredKvStore::take_read_ahead(const PageTable& table,
                                                         const PageEntry& page) {
  std::lock_guard lock(mutex_);
  return read_ahead_.take(table, page);
}

void TieredKvStore::count_hits(std::span<PageEntry* const> entries,
                               std::span<const PinnedPage> pages) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < pages.size(); ++i) {
    ++page_hits_[pages[i].tier];
    residency_.count_hit(*entries[i]);
  }
}

bool TieredKvStore::tend(Deadline deadline) {
  if (read_ahead_.step() || mover_.rise() || keeper_.save_next()) return true;
  std::unique_lock lock(mutex_);
  if (!deadline.passed()) reader_came_.wait_until(lock, deadline.when());
  return false;
}

void TieredKvStore::cool_pages() {
  // Few enough that nobody waits long for the lock.
  constexpr size_t kPagesAtOnce = 4096;
  Columns columns;
  {
    std::lock_guard lock(mutex_);
    if (clock_.now() - cooled_at_ < kHitHalfLife) return;
    cooled_at_ = clock_.now();
    for (const auto& [id, table] : tables_) {
      columns.insert(columns.end(), table->columns().begin(), table->columns().end());
    }
    for (const auto& [key, column] : cache_.columns()) columns.push_back(column);
  }
  std::ranges::sort(columns);
  const auto twice = std::ranges::unique(columns);
  columns.erase(twice.begin(), twice.end());
  const auto at_once = std::max<size_t>(1, kPagesAtOnce / static_cast<size_t>(rows()));
  for (size_t first = 0; first < columns.size(); first += at_once) {
    std::lock_guard lock(mutex_);
    for (size_t i = first; i < std::min(first + at_once, columns.size()); ++i) {
      for (PageEntry& page : columns[i]->entries()) {
        if (page.priority.hits > 0) residency_.halve_hits(page);
      }
    }
  }
}

void TieredKvStore::unpin(std::span<PageEntry* const> pages) {
  std::lock_guard lock(mutex_);
  residency_.unpin_for_reader(pages);
}

Result<void> TieredKvStore::check_sealed_lease(const std::string& request_id,
                                               const std::string& lease_id) const {
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
  if (tables_.at(request_id)->sealed) return {};
  return error(Errc::kNotFound, "request '{}' is not sealed", request_id);
}

bool TieredKvStore::knows_lease(std::string_view lease_id) const {
  std::lock_guard lock(mutex_);
  return leases_.knows(lease_id);
}

Result<void> TieredKvStore::renew_lease(const std::string& request_id, const std::string& lease_id,
                                        Duration lease) {
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(check_sealed_lease(request_id, lease_id));
  return leases_.renew(request_id, lease_id, lease);
}

Result<void> TieredKvStore::release_lease(const std::string& request_id,
                                          const std::string& lease_id) {
  std::shared_ptr<PageTable> gone;
  std::lock_guard lock(mutex_);
  MR_RETURN_IF_ERROR(check_sealed_lease(request_id, lease_id));
  gone = forget(request_id, LeaseEnd::kReleased);
  return {};
}

int64_t TieredKvStore::expire_leases() {
  std::vector<std::shared_ptr<PageTable>> gone;
  {
    std::lock_guard lock(mutex_);
    for (const std::string& request_id : leases_.expired_requests()) {
      gone.push_back(forget(request_id, LeaseEnd::kExpired));
    }
  }
  room_.shrink_disk();
  cool_pages();
  return std::ssize(gone);
}

KvStoreStats TieredKvStore::stats() const {
  std::lock_guard lock(mutex_);
  KvStoreStats stats;
  stats.page_hits = page_hits_;
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
  stats.cache_evictions = room_.num_evictions() + kept.evictions * rows();
  stats.cache_corruptions = cache_check_.num_damaged() + kept.damaged;
  stats.kept_pages = kept.columns * rows();
  stats.kept_bytes = kept.columns * kept.slot_bytes;
  stats.pages_kept = kept.saved * rows();
  stats.pages_restored = keeper_.num_restored() * rows();
  stats.late_restores = keeper_.num_late();
  stats.requests = static_cast<int64_t>(tables_.size());
  stats.leases_active = leases_.active();
  stats.leases_expired = leases_.expired();
  stats.pages_written = pages_written_;
  stats.pages_dropped = pages_dropped_;
  stats.evictions = residency_.evictions();
  stats.moves = residency_.moves();
  stats.read_ahead_pages = read_ahead_.pages_read();
  stats.read_ahead_hits = read_ahead_.pages_taken();
  stats.pinned_pages = residency_.reader_pins();
  return stats;
}

}  // namespace millrace::kvstore
