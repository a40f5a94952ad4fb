// SPDX-License-Identifier: Apache-2.0
// The pages that a KV store remembers under the keys of their content, for prompts that begin alike:
// what decides on prefixes, and what tells others of them, calls this. Threads and errors:
// kvstore/kv_store.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/pages/cache_log.h"
#include "kvstore/pages/page.h"
#include "kvstore/pinned_pages.h"

namespace millrace::kvstore {

// How long check_cached reads kept pages if the caller gives no time.
inline constexpr Duration kDefaultKeptPatience = std::chrono::seconds(10);

// Which copies of cached pages are compared with their checksums.
enum class CacheCheck {
  kAll,
  kDisk,  // of pages that lie only on disk
};

// Where a remembered page lies, over all layers and kv heads. What is neither on disk nor kept is
// in memory.
struct CachedPlace {
  bool held = false;  // remembered or kept; if false, the other fields mean nothing
  bool kept = false;  // only in the files that outlive the process
  double share_on_disk = 0;
};

// Bytes per second at which pages are read, checksums included (kvstore/kept/read_meter.h).
struct ReadRates {
  double disk = 0;
  double kept = 0;
};

class CachedPages {
 public:
  virtual ~CachedPages() = default;

  virtual const KvGeometry& geometry() const = 0;

  // Which of these pages this rank remembers or has kept, or is keeping.
  virtual std::vector<bool> find_cached(std::span<const PageContentKey> keys) const = 0;
  // Where these pages lie (kept ones only while their files answer), and how fast the tiers that
  // take time to read were read lately.
  virtual std::vector<CachedPlace> place_cached(std::span<const PageContentKey> keys) const = 0;
  virtual ReadRates read_rates() const = 0;
  // As find_cached, but pages that turn out damaged, in any layer or head, are not found and are
  // forgotten. Reads all that `check` says. Pages that are only kept are brought into the tiers,
  // and all of each is checked. If there is no room, one is damaged, or `kept_patience` is over,
  // the pages behind it are not brought.
  virtual std::vector<bool> check_cached(std::span<const PageContentKey> keys,
                                         CacheCheck check = CacheCheck::kAll,
                                         Duration kept_patience = kDefaultKeptPatience) = 0;
  // Pages that a request being written began with, for whoever computes the rest: needs no lease
  // and does not count as a pull. Otherwise as pin_in_place.
  virtual Result<std::unique_ptr<PinnedPages>> pin_prefix(const std::string& request_id,
                                                          int32_t layer, int32_t kv_head,
                                                          std::span<const int64_t> pages) = 0;
  // All the pages that the request began with, in all layers and heads, for a caller that reads
  // them from elsewhere.
  virtual Result<std::unique_ptr<HeldPrefix>> hold_prefix(const std::string& request_id) = 0;
  // What has happened to the cached pages since a place in the log (kvstore/pages/cache_log.h): an
  // end() of earlier news, or this one's end, where nothing has happened yet. Pages that could not
  // be remembered count as gone.
  virtual CacheNews read_cache_log(int64_t from) = 0;
  virtual int64_t cache_log_end() const = 0;
  // Whatever is used from here on is worth more than what gave way before
  // (KvStoreStats::eviction_clock). Stores that are to give up the same pages must be told the same
  // clock between the same two requests. The clock never goes back.
  virtual void advance_eviction_clock(double clock) = 0;
};

}  // namespace millrace::kvstore
