// How pages of requests are read: pinned where they lie or read from disk into memory of their own, under a lease, and by
// a running request those of its own prefix. Counts what was read, since that decides what stays in fast tiers, and has
// what a reader will ask for next read ahead.
//
// The TieredKvStore owns it, and it outlives all pins.
// Threads: any, without the store's lock, which is taken for bookkeeping only; read_ahead() is for one thread at a time.
// An error holds nothing. Of requests and leases: as RequestTable and PageTable; of bytes: as Pins::load.
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
#include "kvstore/pins.h"
#include "kvstore/read_ahead.h"
#include "kvstore/request_table.h"
#include "kvstore/tiers/read_budget.h"

namespace millrace::kvstore {

// After so long without being pulled, a page's hits count half: longer than a decode node takes for a
// cache, shorter than leases are renewed for a conversation that goes on.
inline constexpr Duration kHitHalfLife = std::chrono::minutes(1);

class ReadPath {
 public:
  // All outlive it; `mutex`, the store's lock, guards `residency`, `requests` and `cache`. Pages that are read hold
  // `read_bytes`, and those read ahead `read_ahead_bytes`.
  ReadPath(const PageIo& io, Residency& residency, const RequestTable& requests,
           const PrefixCache& cache, std::mutex& mutex, const Clock& clock, int64_t read_bytes,
           int64_t read_ahead_bytes);

  // As of KvStore.
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

  // Reads one page ahead. False: there is none to read.
  bool read_ahead() { return read_ahead_.step(); }
  // Until there may be one, or the deadline has passed.
  void wait_for_reader(Deadline deadline);
  // Every kHitHalfLife: what was pulled long ago counts less.
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
  // A reader has these pages: what it will ask for next is read ahead.
  void follow(const Pins& pins);
  std::optional<ReadMemory> take_read_ahead(const PageTable& table, const PageEntry& page);
  // Of pages that a reader has: those whose bytes are empty once load() has found them, or the reader is
  // told where to copy them.
  void count_hits(std::span<PageEntry* const> entries, std::span<const PinnedPage> pages);
  void unpin(std::span<PageEntry* const> pages);

  const PageIo& io_;
  Residency& residency_;
  const RequestTable& requests_;
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
