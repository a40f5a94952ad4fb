// All pages of one request on this rank: a dense array [layer][kv head][page], taken once when the
// request begins. What an entry says is guarded by the lock of the store (tiered_kv_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/result.h"
#include "kvstore/kv_store.h"
#include "kvstore/placement.h"
#include "kvstore/tiers/slot_pool.h"

namespace millrace::kvstore {

class PageTable;

// A slot per tier; kNoSlot where there is no copy.
struct PageSlots {
  int32_t in[kNumTiers] = {kNoSlot, kNoSlot, kNoSlot};

  int32_t& operator[](Tier tier) { return in[static_cast<int>(tier)]; }
  int32_t operator[](Tier tier) const { return in[static_cast<int>(tier)]; }
  bool has(Tier tier) const { return (*this)[tier] != kNoSlot; }
  // The fastest tier with a copy; there must be one.
  Tier best() const;
};

enum class PageState : uint8_t { kUnwritten, kWriting, kWritten };

struct PageEntry {
  PageTable* table = nullptr;
  uint64_t checksum = 0;
  PageSlots slots;
  int32_t pins = 0;          // while > 0 the best copy stays where it is
  int32_t queue_index = -1;  // in an EvictionQueue
  float score = 0;
  PagePriority priority;
  PageState state = PageState::kUnwritten;
  bool scored = false;
};

static_assert(sizeof(PageEntry) <= kPageEntryBytes);

class PageTable : public std::enable_shared_from_this<PageTable> {
 public:
  // `sequence` grows with every request of the store: of pages equal in all else, those of the
  // older request leave the device first.
  PageTable(std::string request_id, const KvGeometry& geometry, int64_t num_tokens,
            std::span<const int64_t> pages, int64_t sequence);
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  const std::string& request_id() const { return request_id_; }
  int64_t sequence() const { return sequence_; }
  std::span<const int64_t> pages() const { return pages_; }
  int64_t num_prompt_pages() const { return num_prompt_pages_; }
  int64_t num_entries() const { return static_cast<int64_t>(entries_.size()); }
  std::span<PageEntry> entries() { return entries_; }

  // kNotFound names what is outside: layer, kv head or page.
  Result<std::span<PageEntry>> head(int32_t layer, int32_t kv_head);
  // The pages with these numbers, which ascend: kInvalidArgument where they do not or there is none.
  // kNotFound names the first that this rank does not hold.
  Result<std::vector<PageEntry*>> select(int32_t layer, int32_t kv_head,
                                         std::span<const int64_t> pages);
  PageKey key_of(const PageEntry& entry) const;
  // kUnavailable names the first of `entries` that may not be read yet.
  Result<void> check_readable(std::span<PageEntry* const> entries) const;

  // [3, head_dim]: min, max, radius. Of a page that is not written, anything.
  std::span<float> digest_of(const PageEntry& entry);

  // Guarded by the store's lock like the entries.
  int64_t num_unwritten = 0;  // reserved, no slot taken yet
  int64_t num_written = 0;    // settled in their slots
  bool sealed = false;
  bool dead = false;  // forgotten; what is pinned or being written goes when that ends

 private:
  int64_t index_of(const PageEntry& entry) const { return &entry - entries_.data(); }

  std::string request_id_;
  KvGeometry geometry_;
  int64_t num_prompt_pages_;
  int64_t sequence_;
  std::vector<int64_t> pages_;
  std::vector<PageEntry> entries_;
  // [entries, 3, head_dim], in the budget of the host tier. Not initialised: it is the writers who
  // touch it first, many threads beside the computing, and not who begins the request.
  AlignedBuffer digests_;
};

}  // namespace millrace::kvstore
