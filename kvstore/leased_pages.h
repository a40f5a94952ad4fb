// SPDX-License-Identifier: Apache-2.0
// What reads for decode nodes, and keeps their leases, calls of the KV store. Threads and errors:
// kvstore/kv_store.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/system/shared_memory.h"
#include "kvstore/pages/page.h"
#include "kvstore/pinned_pages.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

// first_page, first_page + 1, ...
inline std::vector<int64_t> consecutive_pages(int64_t first_page, int64_t num_pages) {
  std::vector<int64_t> pages(static_cast<size_t>(num_pages));
  // Unsigned, because numbers from the network may overflow.
  auto next = static_cast<uint64_t>(first_page);
  for (int64_t& page : pages) page = static_cast<int64_t>(next++);
  return pages;
}

class LeasedPages {
 public:
  virtual ~LeasedPages() = default;

  virtual const KvGeometry& geometry() const = 0;

  // `pages`: page numbers of the prompt, ascending, at least one.
  virtual Result<std::unique_ptr<PinnedPages>> pin_pages(const std::string& request_id,
                                                         const std::string& lease_id, int32_t layer,
                                                         int32_t kv_head,
                                                         std::span<const int64_t> pages) = 0;
  // The same without reading. Until load() reads them, `bytes` is empty for pages that host memory
  // does not hold.
  virtual Result<std::unique_ptr<PinnedPages>> pin_in_place(const std::string& request_id,
                                                            const std::string& lease_id,
                                                            int32_t layer, int32_t kv_head,
                                                            std::span<const int64_t> pages) = 0;
  // Digests, checksums and scores of these pages, for a caller that does not need their bytes.
  virtual Result<std::unique_ptr<PinnedPages>> pin_digests(const std::string& request_id,
                                                           const std::string& lease_id,
                                                           int32_t layer, int32_t kv_head,
                                                           std::span<const int64_t> pages) = 0;
  // Scores of all pages that this rank holds of these heads, [layers, kv heads, pages]. Needs the
  // same lease, and refuses pages that are not complete yet as the pins do.
  virtual Result<std::vector<float>> scores(const std::string& request_id,
                                            const std::string& lease_id,
                                            const HeadBlock& heads) const = 0;

  // Whether there is a lease with this id under which something may be read. The time taken does
  // not reveal how much of a guess was right.
  virtual bool knows_lease(std::string_view lease_id) const = 0;

  // `waited`: time since the renewal was asked for. A lease that had not ended by then is renewed,
  // unless expire_leases() has ended it already.
  virtual Result<void> renew_lease(const std::string& request_id, const std::string& lease_id,
                                   Duration lease, Duration waited) = 0;
  virtual Result<void> release_lease(const std::string& request_id,
                                     const std::string& lease_id) = 0;
  // Ends leases that are over. The owner calls it about once a second. Returns how many ended.
  virtual int64_t expire_leases() = 0;
  // The pools that other processes can map while the store lives; none without shares_memory. Bytes
  // that pin_in_place finds lie in one of them.
  virtual std::vector<const SharedMemory*> shared_pools() const = 0;
  // The device pool, if its memory is not the host's and other processes can map it.
  virtual std::optional<SharedDeviceMemory> shared_device_pool() const = 0;
};

}  // namespace millrace::kvstore
