// SPDX-License-Identifier: Apache-2.0
// How pages of requests are read: pinned where they lie, or read from disk into memory of their
// own. Reading needs a lease, except that a running request may read its own prefix. Counts what
// was read, because that decides what stays in fast tiers, and has the pages that a reader will ask
// for next read ahead.
//
// The TieredKvStore owns it, and it outlives all pins.
// Threads: any, without the store's lock, which is taken for bookkeeping only; read_ahead() is for
// one thread at a time.
// After an error nothing is held. Errors about requests and leases are those of StoredRequests and
// PageTable; errors about bytes are those of Pins::load.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "kvstore/kv_store.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/prefix_cache.h"
#include "kvstore/pages/residency.h"
#include "kvstore/pages/rising_pages.h"
#include "kvstore/pins.h"
#include "kvstore/read_ahead.h"
#include "kvstore/stored_requests.h"
#include "kvstore/tiers/read_budget.h"

namespace millrace::kvstore {

// After this long without a pull, a page's hits count half. Longer than a decode node takes to pull
// a cache, shorter than the lease renewals of a conversation that goes on.
inline constexpr Duration kHitHalfLife = std::chrono::minutes(1);

class ReadPath {
 public:
  // All arguments outlive it. `mutex`, the store's lock, guards `residency`, `rising`, `requests`
  // and `cache`. Pages that are read hold at most `read_bytes`, and pages read ahead at most
  // `read_ahead_bytes`.
  ReadPath(const PageIo& io, Residency& residency, RisingPages& rising,
           const StoredRequests& requests, const PrefixCache& cache, std::mutex& mutex,
           const Clock& clock, int64_t read_bytes, int64_t read_ahead_bytes);

  // As in KvStore.
  Result<std::unique_ptr<PinnedPages>> pin_prefix(const std::string& request_id, int32_t layer,
                                                  int32_t kv_head, std::span<const int64_t> pages);
  Result<std::unique_ptr<PinnedPages>> pin_pages(const std::string& request_id,
                                                 const std::string& lease_id, int32_t layer,
                                                 int32_t kv_head, std::span<const int64_t> pages);
  Result<std::unique_ptr<PinnedPages>> pin_in_place(const std::string& request_id,
                                                    const std::string& lease_id, int32_t layer,
                                                    int32_t kv_head,
                                                    std::span<const int64_t> pages);
  Result<std::unique_ptr<PinnedPages>> pin_digests(const std::string& request_id,
                                                   const std::string& lease_id, int32_t layer,
                                                   int32_t kv_head, std::span<const int64_t> pages);
  Result<std::vector<float>> scores(const std::string& request_id, const std::string& lease_id,
                                    const HeadBlock& heads) const;

  // Reads one page ahead. False if there is none to read.
  bool read_ahead() { return read_ahead_.step(); }
  // Waits until there may be one, or the deadline has passed.
  void wait_for_reader(Deadline deadline);
  // Every kHitHalfLife: makes pulls of long ago count less.
  void cool_pages();

  // With the store's lock held:
  // The request has ended.
  void forget(const PageTable& table) { read_ahead_.forget(table); }
  const PerTier<int64_t>& page_hits() const { return page_hits_; }
  int64_t pages_read_ahead() const { return read_ahead_.pages_read(); }
  int64_t pages_taken() const { return read_ahead_.pages_taken(); }  // of these

 private:
  Result<std::unique_ptr<Pins>> hold(const std::string& request_id, const std::string& lease_id,
                                     int32_t layer, int32_t kv_head,
                                     std::span<const int64_t> pages);
  // These two with the store's lock held.
  std::unique_ptr<Pins> hold_pages(std::shared_ptr<PageTable> table,
                                   std::vector<PageEntry*> entries);
  Result<void> append_scores(const std::string& request_id, const std::string& lease_id,
                             int32_t layer, int32_t kv_head, std::vector<float>& scores) const;
  // A reader has received these pages: reads ahead what it will ask for next.
  void follow(const Pins& pins);
  std::optional<ReadMemory> take_read_ahead(const PageTable& table, const PageEntry& page);
  // Counts pages that a reader has received. Pages whose bytes are empty count once load() has
  // found them, or the reader is told where to copy them from.
  void count_hits(std::span<PageEntry* const> entries, std::span<const PinnedPage> pages);
  void unpin(std::span<PageEntry* const> pages);

  const PageIo& io_;
  Residency& residency_;
  RisingPages& rising_;
  const StoredRequests& requests_;
  const PrefixCache& cache_;
  std::mutex& mutex_;
  const Clock& clock_;
  ReadBudget budget_;
  ReadAhead read_ahead_;  // guarded by the store's lock, as all that follows
  std::condition_variable reader_came_;
  PerTier<int64_t> page_hits_;
  TimePoint cooled_at_;
};

}  // namespace millrace::kvstore
