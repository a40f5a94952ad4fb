// SPDX-License-Identifier: Apache-2.0
// One page of a prompt in all layers and kv heads of this rank: the unit that requests share, and
// that the prefix cache names and evicts. A request that computes pages makes their columns;
// requests that begin with the same tokens hold them too. A column's records live as long as
// anybody holds it, including the cache. The store's lock guards the fields of its entries
// (tiered_kv_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/content/page_keys.h"
#include "kvstore/pages/page.h"
#include "kvstore/rules/placement.h"
#include "kvstore/rules/retention.h"
#include "kvstore/tiers/slot_pool.h"

namespace millrace::kvstore {

class PageColumn;

// A slot per tier; kNoSlot where there is no copy.
struct PageSlots {
  int32_t in[kNumTiers] = {kNoSlot, kNoSlot, kNoSlot};

  int32_t& operator[](Tier tier) { return in[static_cast<int>(tier)]; }
  int32_t operator[](Tier tier) const { return in[static_cast<int>(tier)]; }
  bool has(Tier tier) const { return (*this)[tier] != kNoSlot; }
  bool any() const { return has(Tier::kDevice) || has(Tier::kHost) || has(Tier::kDisk); }
  // The fastest tier with a copy; there must be one.
  Tier best() const;
};

// kDropped: written, and given up by the only request that held it.
enum class PageState : uint8_t { kUnwritten, kWriting, kWritten, kDropped };

struct PageEntry {
  PageColumn* column = nullptr;
  uint64_t checksum = 0;
  PageSlots slots;
  int32_t pins = 0;          // while > 0 the best copy stays where it is
  int32_t queue_index = -1;  // in an EvictionQueue
  PagePriority priority;     // of the requests that scored it, for the one that needs it most
  PageState state = PageState::kUnwritten;
  bool scored = false;
  bool set_aside = false;  // in a queue of pinned pages (residency.h)
  bool rises = false;      // in RisingPages
};

static_assert(sizeof(PageEntry) <= kPageEntryBytes);

class PageColumn : public std::enable_shared_from_this<PageColumn> {
 public:
  // For the request that will write it. `sequence` grows with every request of the store: among
  // pages equal in all else, those of the older request leave the device first.
  PageColumn(std::string request_id, const KvGeometry& geometry, int64_t page,
             int64_t num_prompt_pages, int64_t sequence);
  PageColumn(const PageColumn&) = delete;
  PageColumn& operator=(const PageColumn&) = delete;

  const std::string& request_id() const { return request_id_; }
  int64_t page() const { return page_; }  // of the prompt
  int64_t sequence() const { return sequence_; }
  std::span<PageEntry> entries() { return entries_; }
  int64_t num_entries() const { return static_cast<int64_t>(entries_.size()); }
  // `row`: layer * kv heads of this rank + the head's place among them.
  PageEntry& entry(int64_t row) { return entries_[static_cast<size_t>(row)]; }
  int64_t row_of(const PageEntry& entry) const { return &entry - entries_.data(); }
  PageKey key_of(const PageEntry& entry) const;
  // [3, head_dim]: min, max, radius. Undefined for a page that is not written.
  std::span<float> digest_of(const PageEntry& entry);
  // Of all entries.
  std::span<float> digests();

  // Guarded by the store's lock like the entries.
  int32_t num_requests = 0;                   // that hold it
  int32_t num_pins = 0;                       // of all its entries
  std::optional<PageContentKey> content_key;  // in the prefix cache, under this
  Retention retention;                        // changed by the prefix cache alone
  bool sealed = false;
  bool dead = false;  // nobody holds it; what is pinned or being written goes when that ends

 private:
  std::string request_id_;
  KvGeometry geometry_;
  int64_t page_;
  int64_t sequence_;
  std::vector<PageEntry> entries_;
  // [entries, 3, head_dim], in the budget of the host tier. Not initialised, so that the writers
  // touch it first, on many threads while others compute, and not the thread that begins the
  // request.
  AlignedBuffer digests_;
};

}  // namespace millrace::kvstore
