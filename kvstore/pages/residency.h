// SPDX-License-Identifier: Apache-2.0
// Which slots hold which page: free slots per tier, the copies of every page, and what may be
// evicted. It decides and keeps the books, but never touches bytes. Not thread-safe: every call is
// made under the store's lock. Every copy is made outside it, between a take or plan_* and its
// settle or finish.
//
// Why a write never fails for lack of room. Let
//   U = pages reserved and not written, F = free slots of all tiers, C = pages with two copies, on
//   device and host (clean) or on host and disk (backed): pins hold the better one, so the other
//   can be dropped at once.
// F + C - U is the slack. reserve() grants only what keeps the slack at kTransitSlots or more, and
// nothing else lowers it for good. A write takes one slot and one reservation. The second copy of a
// write-through, and a move, which holds a slot at both ends, are made only if there is slack for
// them. So while U > 0 there is a free slot or a page with two copies.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kvstore/pages/eviction_queue.h"
#include "kvstore/pages/page.h"
#include "kvstore/pages/page_column.h"
#include "kvstore/tiers/slot_pool.h"

namespace millrace::kvstore {

// A copy in flight from one tier to another. Holds a pin on the page, and the target slot.
struct PageMove {
  std::shared_ptr<PageColumn> keep_alive;
  PageEntry* page = nullptr;
  Tier from = Tier::kHost;
  Tier to = Tier::kDevice;
  int32_t from_slot = kNoSlot;
  int32_t to_slot = kNoSlot;
};

class Residency {
 public:
  // Device and host slots exist at once; disk slots come with grow_disk(), up to max_slots.
  explicit Residency(const std::array<int64_t, kNumTiers>& max_slots);

  // Reservation. available(): pages that could be reserved if the disk grew to its limit.
  int64_t available() const;
  // Of these, the pages that could be in memory, on top of all that is reserved already.
  int64_t available_in_memory() const;
  int64_t disk_shortfall(int64_t num_pages) const;  // slots the disk lacks to reserve num_pages
  void grow_disk(int64_t num_slots) { pool(Tier::kDisk).grow(num_slots); }
  // Gives up all disk slots when none is used or promised; returns whether it did.
  bool shrink_disk();
  void reserve(int64_t num_pages);  // the caller checked: disk_shortfall() == 0
  void unreserve(int64_t num_pages);

  // Writing: takes slots for a page of worth `page.priority`, against its reservation. Then either
  // settle, or give_back and, if the page may be written again, reserve(1).
  PageSlots take_for_write(const PageEntry& page);
  void settle(PageEntry& page, const PageSlots& slots);
  void give_back(const PageSlots& slots);

  void pin(PageEntry& page);
  void unpin(PageEntry& page);  // the last unpin of a page of a dead column frees it
  // Pins of readers, counted until they are unpinned.
  void pin_for_reader(std::span<PageEntry* const> pages);
  void unpin_for_reader(std::span<PageEntry* const> pages);
  int64_t reader_pins() const { return reader_pins_; }
  void free_unpinned(PageEntry& page);
  // For a column that lives on: frees the page's slots, or if it is pinned, with the last unpin.
  void free(PageEntry& page);
  // For a column that nobody holds: frees its pages, the pinned ones with their last unpin.
  void free(PageColumn& column);
  // For a column that enters the prefix cache (sign 1, after its key is set) or leaves it (sign -1,
  // before its key is cleared).
  void count_cached(PageColumn& column, int64_t sign);
  void set_priority(PageEntry& page, PagePriority priority);
  // Counts a pull; and halves the hits of a page, as is done to all pages now and then.
  void count_hit(PageEntry& page);
  void halve_hits(PageEntry& page);

  // Moving. The next copy that brings `page` to the device, or makes room for it there by moving
  // out a page worth less. None if the page is there already or should not be. Repeat until none.
  std::optional<PageMove> plan_promotion(PageEntry& page);
  // The same for a page that has risen: it takes the place only of a page that it displaces
  // (placement.h).
  std::optional<PageMove> plan_lift(PageEntry& page);
  // What a page from disk may take: only room that nobody needs, or also the place of a page that
  // it displaces (placement.h).
  enum class Takes : uint8_t { kRoom, kPlaces };
  // The next copy that brings `page` from disk to host (it stays on disk too), or makes room for it
  // there by moving out a page. None if the page is there already or should not be. Repeat until
  // none.
  std::optional<PageMove> plan_warming(PageEntry& page, Takes takes);
  // The same for the best page on disk.
  std::optional<PageMove> plan_rise();
  void finish(const PageMove& move, bool copied);

  int64_t slots_total(Tier tier) const { return max_slots_[static_cast<int>(tier)]; }
  int64_t slots_used(Tier tier) const { return pool(tier).used(); }
  int64_t slots_allocated(Tier tier) const { return pool(tier).size(); }
  int64_t evictions() const { return evictions_; }
  // Finished moves, [from][to].
  const PerTier<PerTier<int64_t>>& moves() const { return moves_; }
  // Copies of pages of columns in the prefix cache, by tier.
  const PerTier<int64_t>& cached_slots() const { return cached_slots_; }
  // For tests: F + C - U.
  int64_t slack() const;

 private:
  SlotPool& pool(Tier tier) { return pools_[static_cast<int>(tier)]; }
  const SlotPool& pool(Tier tier) const { return pools_[static_cast<int>(tier)]; }
  void give(Tier tier, int32_t slot);
  void drop(PageEntry& page, Tier tier);

  static bool has_two_copies(const PageEntry& page);
  // For a page that has a copy.
  EvictionQueue& queue_of(const PageEntry& page);
  // A pinned page with one copy waits for its last unpin.
  void enqueue(PageEntry& page);
  void dequeue(PageEntry& page);

  void evict_clean(PageEntry& page);
  void drop_copy(PageEntry& page, Tier tier);
  // A slot for `page`: a free one, or that of a copy which can be dropped for it.
  int32_t take_host_slot(const PageEntry& page);
  int32_t take_disk_slot();
  // Null if there is none. Pinned pages that come before it leave the queue until they are
  // unpinned; those with two copies go to `aside`.
  static PageEntry* first_unpinned(EvictionQueue& queue, EvictionQueue* aside = nullptr);
  PageMove start_move(PageEntry& page, Tier to, int32_t to_slot);
  // `gives_way`: whether a page on the device makes room.
  template <typename GivesWay>
  std::optional<PageMove> plan_to_device(PageEntry& page, const GivesWay& gives_way);
  std::optional<PageMove> plan_demotion(PageEntry& page);

  std::array<int64_t, kNumTiers> max_slots_;
  std::array<SlotPool, kNumTiers> pools_;
  // Pages on the device: clean ones, which have a host copy too, so that eviction is a rebind; and
  // dirty ones, which do not. Pinned pages are not evicted, but pinned clean ones still have a host
  // copy to give. Queues also hold pinned pages until first_unpinned() finds them there: readers
  // pin many, and few of these are ever looked at.
  EvictionQueue clean_;
  EvictionQueue pinned_clean_;
  EvictionQueue dirty_;
  // Pages on the host that are not on the device: without another copy, and with one on disk.
  EvictionQueue host_;
  EvictionQueue backed_;
  EvictionQueue pinned_backed_;
  EvictionQueue disk_;  // only on disk, the best first
  int64_t unwritten_ = 0;
  int64_t moving_ = 0;  // copies in flight: each holds a slot that comes back
  int64_t transit_slots_;
  int64_t evictions_ = 0;
  int64_t reader_pins_ = 0;
  PerTier<PerTier<int64_t>> moves_;
  PerTier<int64_t> cached_slots_;
};

}  // namespace millrace::kvstore
