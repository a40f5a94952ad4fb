// SPDX-License-Identifier: Apache-2.0
// The KvStore over three SlotMemory tiers.
//
// Locks. `mutex_` guards every table, entry, queue and lease, and is held for bookkeeping only.
// Bytes are copied, checksummed and read from disk outside it, in slots that nobody else can name
// (writes) or that a pin holds in place (reads, moves). Three more locks are taken before it and
// may be held over file operations: those of the StoreRoom, the PageMover and the ColumnKeeper. The
// ColumnKeeper's comes after the StoreRoom's.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvstore/cached_page_check.h"
#include "kvstore/kept/column_keeper.h"
#include "kvstore/kept/prefix_loader.h"
#include "kvstore/kept/read_meter.h"
#include "kvstore/kv_store.h"
#include "kvstore/page_mover.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/page_table.h"
#include "kvstore/pages/prefix_cache.h"
#include "kvstore/pages/residency.h"
#include "kvstore/pages/rising_pages.h"
#include "kvstore/read_path.h"
#include "kvstore/store_room.h"
#include "kvstore/stored_requests.h"

namespace millrace::kvstore {

class TieredKvStore final : public KvStore {
 public:
  TieredKvStore(const KvGeometry& geometry, TierStorages tiers, const Clock& clock,
                bool promotes = true, int64_t read_bytes = kDefaultReadBytes,
                int64_t read_ahead_bytes = kDefaultReadAheadBytes,
                std::unique_ptr<PrefixArchive> archive = nullptr);
  // All pins must be gone by then.
  ~TieredKvStore() override;

  const KvGeometry& geometry() const override { return geometry_; }
  using KvStore::begin_request;
  Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                             std::span<const int64_t> pages,
                             std::span<const CachedPage> prefix) override;
  Result<void> open(const std::string& request_id, const std::string& lease_id) override;
  using KvStore::write_pages;
  Result<void> write_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                           std::span<const int64_t> pages, std::span<const std::byte> kv,
                           const PageDigest& digests, const DeviceHalves& on_device) override;
  Result<void> set_prefix_scores(const std::string& request_id,
                                 std::span<const float> scores) override;
  Result<std::unique_ptr<HeldPrefix>> hold_prefix(const std::string& request_id) override;
  Result<void> set_scores(const std::string& request_id, int32_t layer, int32_t kv_head,
                          std::span<const float> scores) override;
  Result<void> drop_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                          std::span<const int64_t> pages) override;
  Result<Placement> seal(const std::string& request_id, const std::string& lease_id,
                         Duration lease) override;
  using KvStore::remember;
  Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages,
                           double cost, std::shared_ptr<const CachedPrompt> prompt) override;
  CacheNews read_cache_log(int64_t from) override;
  int64_t cache_log_end() const override;
  void advance_eviction_clock(double clock) override;
  std::vector<bool> find_cached(std::span<const PageContentKey> keys) const override;
  std::vector<CachedPlace> place_cached(std::span<const PageContentKey> keys) const override;
  ReadRates read_rates() const override;
  std::vector<bool> check_cached(std::span<const PageContentKey> keys, CacheCheck check,
                                 Duration kept_patience) override;
  Result<std::unique_ptr<PinnedPages>> pin_prefix(const std::string& request_id, int32_t layer,
                                                  int32_t kv_head,
                                                  std::span<const int64_t> pages) override {
    return read_path_.pin_prefix(request_id, layer, kv_head, pages);
  }
  void abort(const std::string& request_id) override;
  Result<std::unique_ptr<PinnedPages>> pin_pages(const std::string& request_id,
                                                 const std::string& lease_id, int32_t layer,
                                                 int32_t kv_head,
                                                 std::span<const int64_t> pages) override {
    return read_path_.pin_pages(request_id, lease_id, layer, kv_head, pages);
  }
  Result<std::unique_ptr<PinnedPages>> pin_in_place(const std::string& request_id,
                                                    const std::string& lease_id, int32_t layer,
                                                    int32_t kv_head,
                                                    std::span<const int64_t> pages) override {
    return read_path_.pin_in_place(request_id, lease_id, layer, kv_head, pages);
  }
  Result<std::unique_ptr<PinnedPages>> pin_digests(const std::string& request_id,
                                                   const std::string& lease_id, int32_t layer,
                                                   int32_t kv_head,
                                                   std::span<const int64_t> pages) override {
    return read_path_.pin_digests(request_id, lease_id, layer, kv_head, pages);
  }
  Result<std::vector<float>> scores(const std::string& request_id, const std::string& lease_id,
                                    const HeadBlock& heads) const override {
    return read_path_.scores(request_id, lease_id, heads);
  }
  bool knows_lease(std::string_view lease_id) const override;
  Result<void> renew_lease(const std::string& request_id, const std::string& lease_id,
                           Duration lease, Duration waited) override;
  Result<void> release_lease(const std::string& request_id, const std::string& lease_id) override;
  int64_t expire_leases() override;
  bool tend(Deadline deadline) override;
  int64_t keep_cached(Duration patience) override { return keeper_.save_all(patience) * rows(); }
  bool keeps_prefixes() const override { return keeper_.keeps(); }
  bool needs_tending() const override {
    return rising_.lifts() || keeps_prefixes() || residency_.slots_total(Tier::kDisk) > 0;
  }
  KvStoreStats stats() const override;
  void prefault(int num_threads, const Prefault::Then& then) override {
    io_.prefault(num_threads, then);
  }
  std::vector<const SharedMemory*> shared_pools() const override { return io_.shared(); }
  std::optional<SharedDeviceMemory> shared_device_pool() const override {
    return io_.shared_device();
  }

 private:
  // Pages that nobody else writes, and what becomes of each.
  struct PageWrites {
    struct Page {
      PageEntry* entry = nullptr;
      PageSlots slots;
      uint64_t checksum = 0;
      bool copied = false;
    };
    std::shared_ptr<PageTable> table;
    std::vector<Page> pages;
  };

  // These are called with mutex_ held.
  // Returns the table, or null if there is none. The caller lets it go without the lock, because a
  // large table takes time to free.
  std::shared_ptr<PageTable> forget(const std::string& request_id, LeaseEnd why);

  using Columns = StoreRoom::Columns;
  Result<int64_t> remember_pages(const std::string& request_id, std::span<const CachedPage> pages,
                                 double cost, Columns& gone);
  bool is_cached(const PageContentKey& key) const {
    return cache_.find(key) != nullptr || keeper_.will_have(key);
  }
  CacheNews all_cached() const;
  Result<Columns> take_prefix(const std::string& request_id, std::span<const CachedPage> prefix,
                              int64_t sequence);
  // Forgets an idle column with this key if more of it is on disk than of `again`, the column that
  // a prompt computed again. The caller lets it go without the lock.
  void forget_slower(const PageContentKey& key, PageColumn& again, Columns& gone);
  void release(PageColumn& column);

  // Brings one page that has risen to the device, or counts what prompts began with.
  bool lift();

  int64_t rows() const { return int64_t{geometry_.num_layers} * geometry_.num_kv_heads; }
  Result<void> begin_after(const std::string& request_id, int64_t num_tokens,
                           std::span<const int64_t> pages, int64_t sequence, Columns prefix);
  Result<std::shared_ptr<PageTable>> make_table(const std::string& request_id, int64_t num_tokens,
                                                std::span<const int64_t> pages, int64_t sequence,
                                                Columns prefix) const;

  Result<PageWrites> start_writes(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const int64_t> pages);
  void finish_writes(const PageWrites& writes);

  const KvGeometry geometry_;
  const bool promotes_;
  PageIo io_;

  mutable std::mutex mutex_;
  Residency residency_;
  RisingPages rising_;
  PageMover mover_;
  CacheLog cache_log_;
  PrefixCache cache_;
  ReadMeter disk_meter_;
  ReadMeter kept_meter_;
  CachedPageCheck cache_check_;
  ColumnKeeper keeper_;
  StoreRoom room_;
  PrefixLoader prefix_loader_;
  StoredRequests requests_;
  ReadPath read_path_;
  int64_t next_sequence_ = 0;
  int64_t pages_written_ = 0;
  int64_t pages_dropped_ = 0;
  int64_t cache_replacements_ = 0;
};

}  // namespace millrace::kvstore
