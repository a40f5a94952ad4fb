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
// The disk file grows by at least this many slots: a call per page would dominate.
constexpr int64_t kDiskGrowthSlots = 64;

}  // namespace

TieredKvStore::TieredKvStore(const KvGeometry& geometry, TierStorages tiers, const Clock& clock,
                             bool promotes, int64_t read_bytes, int64_t read_ahead_bytes)
    : geometry_(geometry),
      promotes_(promotes),
      io_(std::move(tiers), geometry.page_bytes()),
      read_budget_(read_bytes),
      clock_(clock),
      residency_(io_.max_slots()),
      mover_(io_, residency_, mutex_),
      read_ahead_(io_, residency_, mutex_, clock, read_ahead_bytes),
      leases_(clock),
      cooled_at_(clock.now()) {}

TieredKvStore::~TieredKvStore() {
  MR_CHECK(pinned_pages_ == 0, "{} pages are pinned in a store that is being destroyed",
           pinned_pages_);
}

Result<void> TieredKvStore::begin_request(const std::string& request_id, int64_t num_tokens,
                                          std::span<const int64_t> pages) {
  MR_RETURN_IF_ERROR(check_request(request_id, num_tokens, pages, geometry_));
  const int64_t rows = int64_t{geometry_.num_layers} * geometry_.num_kv_heads;
  // No overflow: `pages` lies in memory, and rows is at most 2^24 (kv_store.cc).
  const int64_t num_pages = static_cast<int64_t>(pages.size()) * rows;
  // One at a time, so that the room found is still there when it is taken.
  std::lock_guard growing(growth_mutex_);
  int64_t sequence = 0;
  {
    std::lock_guard lock(mutex_);
    if (tables_.contains(request_id)) {
      return error(Errc::kInvalidArgument, "request '{}' already exists", request_id);
    }
    if (tables_.size() >= kMaxRequests) {
      return error(Errc::kExhausted, "request '{}': the store holds {} requests, the limit",
                   request_id, kMaxRequests);
    }
    if (num_pages > residency_.available()) return no_room(request_id, num_pages);
    sequence = next_sequence_++;
  }
  MR_RETURN_IF_ERROR(grow_disk_for(request_id, num_pages));
  MR_ASSIGN_OR_RETURN(auto table, make_table(request_id, num_tokens, pages, sequence));
  std::lock_guard lock(mutex_);
  // The disk grew by less.
  if (residency_.disk_shortfall(num_pages) > 0) return no_room(request_id, num_pages);
  residency_.reserve(num_pages);
  leases_.forget_end(request_id);
  tables_.emplace(request_id, std::move(table));
  return {};
}

// Records of a long prompt are gigabytes.
Result<std::shared_ptr<PageTable>> TieredKvStore::make_table(const std::string& request_id,
                                                             int64_t num_tokens,
                                                             std::span<const int64_t> pages,
                                                             int64_t sequence) const {
  try {
    return std::make_shared<PageTable>(request_id, geometry_, num_tokens, pages, sequence);
  } catch (const std::bad_alloc&) {
    const int64_t num_pages =
        std::ssize(pages) * int64_t{geometry_.num_layers} * geometry_.num_kv_heads;
    return error(Errc::kExhausted, "request '{}': cannot allocate records of {} pages, {} each",
                 request_id, num_pages, format_bytes(geometry_.record_bytes()));
  }
}

Result<void> TieredKvStore::grow_disk_for(const std::string& request_id, int64_t num_pages) {
  int64_t old_slots = 0;
  int64_t new_slots = 0;
  {
    std::lock_guard lock(mutex_);
    const int64_t shortfall = residency_.disk_shortfall(num_pages);
    if (shortfall == 0) return {};
    old_slots = residency_.slots_allocated(Tier::kDisk);
    new_slots = std::min(old_slots + std::max(shortfall, kDiskGrowthSlots),
                         residency_.slots_total(Tier::kDisk));
  }
  if (new_slots == old_slots) return {};
  if (auto grown = io_.resize_disk(new_slots); !grown.ok()) {
    return error(grown.error().code, "request '{}': {}", request_id, grown.error().message);
  }
  std::lock_guard lock(mutex_);
  residency_.grow_disk(new_slots - old_slots);
  return {};
}

Error TieredKvStore::no_room(const std::string& request_id, int64_t num_pages) const {
  const auto use = [this](Tier tier) {
    return fmt::format("{} of {}", residency_.slots_used(tier), residency_.slots_total(tier));
  };
  return error(Errc::kExhausted,
               "request '{}' needs {} pages of {}, room for {} (slots used: device {}, host {}, "
               "disk {})",
               request_id, num_pages, format_bytes(io_.page_bytes()), residency_.available(),
               use(Tier::kDevice), use(Tier::kHost), use(Tier::kDisk));
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

Result<void> TieredKvStore::write_page(const std::string& request_id, const PageKey& key,
                                       std::span<const std::byte> kv, const PageDigest& digest) {
  MR_RETURN_IF_ERROR(check_page(request_id, kv, digest, geometry_));
  const uint64_t sum = checksum(kv);
  MR_ASSIGN_OR_RETURN(const PageWrite write, start_write(request_id, key));
  const auto stored_digest = write.table->digest_of(*write.page);
  auto next = stored_digest.begin();
  for (const auto& values : {digest.min, digest.max, digest.radius}) {
    next = std::copy(values.begin(), values.end(), next);
  }
  auto copied = io_.write(write.slots, kv);
  finish_write(write, sum, copied.ok());
  return copied;
}

Result<TieredKvStore::PageWrite> TieredKvStore::start_write(const std::string& request_id,
                                                            const PageKey& key) {
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(auto table, find_running(request_id));
  MR_ASSIGN_OR_RETURN(const auto entries,
                      table->select(key.layer, key.kv_head, std::span(&key.page, 1)));
  PageEntry& page = *entries.front();
  if (page.state != PageState::kUnwritten) {
    return error(Errc::kInvalidArgument, "request '{}': layer {} kv head {} page {} written twice",
                 request_id, key.layer, key.kv_head, key.page);
  }
  page.state = PageState::kWriting;
  --table->num_unwritten;
  const PageSlots slots = residency_.take_for_write(page);
  return PageWrite{.table = std::move(table), .page = &page, .slots = slots};
}

void TieredKvStore::finish_write(const PageWrite& write, uint64_t sum, bool copied) {
  std::lock_guard lock(mutex_);
  PageEntry& page = *write.page;
  if (copied && !write.table->dead) {
    page.checksum = sum;
    page.state = PageState::kWritten;
    residency_.settle(page, write.slots);
    ++write.table->num_written;
    ++pages_written_;
    return;
  }
  page.state = PageState::kUnwritten;
  residency_.give_back(write.slots);
  if (write.table->dead) return;
  ++write.table->num_unwritten;
  residency_.reserve(1);
}

Result<void> TieredKvStore::set_scores(const std::string& request_id, int32_t layer,
                                       int32_t kv_head, std::span<const float> scores) {
  std::shared_ptr<PageTable> table;
  std::span<PageEntry> entries;
  {
    std::lock_guard lock(mutex_);
    MR_ASSIGN_OR_RETURN(table, find_running(request_id));
    MR_ASSIGN_OR_RETURN(entries, table->head(layer, kv_head));
  }
  MR_RETURN_IF_ERROR(check_scores(request_id, layer, kv_head, scores, std::ssize(entries)));
  const auto ranks = rank_pages(layer, table->num_prompt_pages(), table->pages(), scores);
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].score = scores[i];
    entries[i].scored = true;
    PagePriority priority = ranks[i];
    priority.hits = entries[i].priority.hits;
    residency_.set_priority(entries[i], priority);
  }
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
  for (const PageEntry& page : table->entries()) {
    ++placement.pages[page.slots.best()];
  }
  return placement;
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
  for (PageEntry& page : table->entries()) residency_.free_unpinned(page);
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
  count_hits(pins->entries(), pins->pages());
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
  for (PageEntry* page : entries) residency_.pin(*page);
  pinned_pages_ += std::ssize(entries);
  return std::make_unique<Pins>(
      Pins::Source{.io = io_,
                   .budget = read_budget_,
                   .read_ahead = [this](const PageEntry& page) { return take_read_ahead(page); },
                   .count = [this](auto held, auto found) { count_hits(held, found); }},
      table, std::move(entries), [this](std::span<PageEntry* const> held) { unpin(held); });
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
  MR_ASSIGN_OR_RETURN(const auto pages, table->head(layer, kv_head));
  for (PageEntry& page : pages) {
    PageEntry* const one = &page;
    MR_RETURN_IF_ERROR(table->check_readable({&one, 1}));
    scores.push_back(page.score);
  }
  return {};
}

void TieredKvStore::follow(const Pins& pins) {
  if (residency_.slots_total(Tier::kDisk) == 0) return;
  std::lock_guard lock(mutex_);
  PageTable& table = *pins.entries().front()->table;
  if (!table.dead) read_ahead_.follow(table, pins.entries());
  if (read_ahead_.has_targets()) reader_came_.notify_one();
}

std::optional<ReadMemory> TieredKvStore::take_read_ahead(const PageEntry& page) {
  std::lock_guard lock(mutex_);
  return read_ahead_.take(page);
}

void TieredKvStore::count_hits(std::span<PageEntry* const> entries,
                               std::span<const PinnedPage> pages) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < pages.size(); ++i) {
    if (pages[i].bytes.empty()) continue;
    ++page_hits_[pages[i].tier];
    residency_.count_hit(*entries[i]);
  }
}

bool TieredKvStore::tend(Deadline deadline) {
  if (read_ahead_.step() || mover_.rise()) return true;
  std::unique_lock lock(mutex_);
  if (!deadline.passed()) reader_came_.wait_until(lock, deadline.when());
  return false;
}

void TieredKvStore::cool_pages() {
  // Few enough that nobody waits long for the lock.
  constexpr size_t kPagesAtOnce = 4096;
  std::vector<std::shared_ptr<PageTable>> tables;
  {
    std::lock_guard lock(mutex_);
    if (clock_.now() - cooled_at_ < kHitHalfLife) return;
    cooled_at_ = clock_.now();
    for (const auto& [id, table] : tables_) tables.push_back(table);
  }
  for (const auto& table : tables) {
    for (auto rest = table->entries(); !rest.empty();) {
      const auto some = rest.first(std::min(rest.size(), kPagesAtOnce));
      rest = rest.subspan(some.size());
      std::lock_guard lock(mutex_);
      for (PageEntry& page : some) {
        if (page.priority.hits > 0) residency_.halve_hits(page);
      }
    }
  }
}

void TieredKvStore::unpin(std::span<PageEntry* const> pages) {
  std::lock_guard lock(mutex_);
  for (PageEntry* page : pages) residency_.unpin(*page);
  pinned_pages_ -= static_cast<int64_t>(pages.size());
}

Result<void> TieredKvStore::check_sealed_lease(const std::string& request_id,
                                               const std::string& lease_id) const {
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
  if (tables_.at(request_id)->sealed) return {};
  return error(Errc::kNotFound, "request '{}' is not sealed", request_id);
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
  shrink_disk();
  cool_pages();
  return std::ssize(gone);
}

// The sweep also gives an unused disk file back to the file system.
void TieredKvStore::shrink_disk() {
  std::lock_guard growing(growth_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (!residency_.shrink_disk()) return;
  }
  if (const auto shrunk = io_.resize_disk(0); !shrunk.ok()) {
    spdlog::warn("kvstore: {}", shrunk.error().to_string());
  }
}

KvStoreStats TieredKvStore::stats() const {
  std::lock_guard lock(mutex_);
  KvStoreStats stats;
  stats.page_hits = page_hits_;
  for (const Tier tier : kTiers) {
    stats.tiers[tier] = {.slots_total = residency_.slots_total(tier),
                         .slots_used = residency_.slots_used(tier),
                         .slot_bytes = io_.page_bytes()};
  }
  stats.pages_available = residency_.available();
  stats.requests = static_cast<int64_t>(tables_.size());
  stats.leases_active = leases_.active();
  stats.leases_expired = leases_.expired();
  stats.pages_written = pages_written_;
  stats.evictions = residency_.evictions();
  stats.moves = residency_.moves();
  stats.read_ahead_pages = read_ahead_.pages_read();
  stats.read_ahead_hits = read_ahead_.pages_taken();
  stats.pinned_pages = pinned_pages_;
  return stats;
}

}  // namespace millrace::kvstore
