// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/residency.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kvstore {
namespace {

// Room for the one move that is under way at a time. With a single tier nothing moves.
constexpr int64_t kTransitSlots = 1;

// A page whose column is being given up, or that is being given up itself, may not move.
bool may_move(const PageEntry& page) {
  return !page.column->dead && page.state == PageState::kWritten && page.pins == 0;
}

int64_t count_tiers(const std::array<int64_t, kNumTiers>& max_slots) {
  return std::count_if(max_slots.begin(), max_slots.end(), [](int64_t n) { return n > 0; });
}

}  // namespace

Residency::Residency(const std::array<int64_t, kNumTiers>& max_slots)
    : max_slots_(max_slots),
      clean_(max_slots[static_cast<int>(Tier::kDevice)]),
      pinned_clean_(max_slots[static_cast<int>(Tier::kDevice)]),
      dirty_(max_slots[static_cast<int>(Tier::kDevice)]),
      host_(max_slots[static_cast<int>(Tier::kHost)]),
      backed_(max_slots[static_cast<int>(Tier::kHost)]),
      pinned_backed_(max_slots[static_cast<int>(Tier::kHost)]),
      disk_(max_slots[static_cast<int>(Tier::kDisk)], EvictionQueue::First::kBest),
      transit_slots_(count_tiers(max_slots) > 1 ? kTransitSlots : 0) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) pool(tier).grow(slots_total(tier));
}

int64_t Residency::slack() const {
  int64_t free = 0;
  for (const SlotPool& tier : pools_) free += tier.free();
  return free + clean_.size() + pinned_clean_.size() + backed_.size() + pinned_backed_.size() -
         unwritten_;
}

int64_t Residency::available() const {
  const int64_t disk_growth = slots_total(Tier::kDisk) - pool(Tier::kDisk).size();
  return std::max<int64_t>(0, slack() + moving_ + disk_growth - transit_slots_);
}

int64_t Residency::available_in_memory() const {
  const int64_t free = pool(Tier::kDevice).free() + pool(Tier::kHost).free();
  return std::max<int64_t>(0, std::min(available(), free - unwritten_));
}

int64_t Residency::disk_shortfall(int64_t num_pages) const {
  return std::max<int64_t>(0, num_pages + transit_slots_ - slack() - moving_);
}

bool Residency::shrink_disk() {
  SlotPool& disk = pool(Tier::kDisk);
  if (disk.size() == 0 || disk.used() > 0 || slack() - disk.size() < transit_slots_) return false;
  disk.clear();
  return true;
}

void Residency::reserve(int64_t num_pages) {
  unwritten_ += num_pages;
}

void Residency::unreserve(int64_t num_pages) {
  MR_CHECK(num_pages <= unwritten_, "{} of {} reservations", num_pages, unwritten_);
  unwritten_ -= num_pages;
}

// In order: a free device slot, the device slot of a clean page worth less, the host, the disk. The
// second copy of a page gives way to a page that has no copy elsewhere.
PageSlots Residency::take_for_write(const PageEntry& page) {
  PageSlots slots;
  unreserve(1);
  if (pool(Tier::kDevice).free() == 0) {
    PageEntry* const least = first_unpinned(clean_, &pinned_clean_);
    if (least != nullptr && worth_less(*least, page)) evict_clean(*least);
  }
  if (slots[Tier::kDevice] = pool(Tier::kDevice).take(); slots.has(Tier::kDevice)) {
    if (slack() > transit_slots_) slots[Tier::kHost] = pool(Tier::kHost).take();
    return slots;
  }
  if (slots[Tier::kHost] = take_host_slot(page); slots.has(Tier::kHost)) return slots;
  slots[Tier::kDisk] = take_disk_slot();
  MR_CHECK(slots.has(Tier::kDisk), "a reserved page has no slot: slack {}", slack());
  return slots;
}

void Residency::settle(PageEntry& page, const PageSlots& slots) {
  page.slots = slots;
  enqueue(page);
}

void Residency::give_back(const PageSlots& slots) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (slots.has(tier)) give(tier, slots[tier]);
  }
}

void Residency::pin(PageEntry& page) {
  ++page.pins;
  ++page.column->num_pins;
}

void Residency::unpin(PageEntry& page) {
  MR_CHECK(page.pins > 0, "unpin of a page without pins");
  --page.pins;
  --page.column->num_pins;
  if (page.pins > 0) return;
  if (page.column->dead || page.state == PageState::kDropped) {
    free_unpinned(page);
    return;
  }
  if (page.set_aside) dequeue(page);
  if (page.queue_index < 0) enqueue(page);
}

void Residency::pin_for_reader(std::span<PageEntry* const> pages) {
  for (PageEntry* page : pages) pin(*page);
  reader_pins_ += std::ssize(pages);
}

void Residency::unpin_for_reader(std::span<PageEntry* const> pages) {
  for (PageEntry* page : pages) unpin(*page);
  reader_pins_ -= std::ssize(pages);
}

void Residency::free(PageColumn& column) {
  column.dead = true;
  for (PageEntry& page : column.entries()) free_unpinned(page);
}

void Residency::free(PageEntry& page) {
  page.state = PageState::kDropped;
  free_unpinned(page);
}

void Residency::free_unpinned(PageEntry& page) {
  if (!page.slots.any()) return;
  dequeue(page);
  const Tier pinned = page.slots.best();
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!page.slots.has(tier) || (page.pins > 0 && tier == pinned)) continue;
    drop(page, tier);
  }
}

void Residency::set_priority(PageEntry& page, PagePriority priority) {
  if (priority == page.priority) return;
  page.priority = priority;
  if (page.queue_index >= 0) queue_of(page).restore_order(page);
}

template <typename GivesWay>
std::optional<PageMove> Residency::plan_to_device(PageEntry& page, const GivesWay& gives_way) {
  if (!may_move(page) || page.slots.has(Tier::kDevice) || slack() < 1) {
    return std::nullopt;
  }
  if (pool(Tier::kDevice).free() == 0) {
    PageEntry* lowest = first_unpinned(clean_, &pinned_clean_);
    PageEntry* const dirty = first_unpinned(dirty_);
    if (dirty != nullptr && (lowest == nullptr || worth_less(*dirty, *lowest))) lowest = dirty;
    if (lowest == nullptr || !gives_way(*lowest)) return std::nullopt;
    if (!lowest->slots.has(Tier::kHost)) return plan_demotion(*lowest);
    evict_clean(*lowest);
  }
  return start_move(page, Tier::kDevice, pool(Tier::kDevice).take());
}

std::optional<PageMove> Residency::plan_promotion(PageEntry& page) {
  return plan_to_device(page, [&](const PageEntry& lowest) { return worth_less(lowest, page); });
}

std::optional<PageMove> Residency::plan_lift(PageEntry& page) {
  return plan_to_device(page, [&](const PageEntry& lowest) {
    // The scores of a page that is being written come a moment later.
    return (lowest.scored || lowest.column->sealed) && displaces(page.priority, lowest.priority);
  });
}

std::optional<PageMove> Residency::plan_warming(PageEntry& page, Takes takes) {
  if (!may_move(page) || page.slots.best() != Tier::kDisk || slack() < 1) {
    return std::nullopt;
  }
  int32_t slot = take_host_slot(page);
  if (slot == kNoSlot && takes == Takes::kPlaces) {
    // Pages with a copy on disk give up their place first (take_host_slot).
    PageEntry* const least = first_unpinned(host_);
    // The scores of a page that is being written come a moment later.
    if (least == nullptr || !(least->scored || least->column->sealed) ||
        !displaces(page.priority, least->priority)) {
      return std::nullopt;
    }
    const int32_t disk_slot = take_disk_slot();
    if (disk_slot == kNoSlot) return std::nullopt;
    return start_move(*least, Tier::kDisk, disk_slot);
  }
  if (slot == kNoSlot) return std::nullopt;
  return start_move(page, Tier::kHost, slot);
}

std::optional<PageMove> Residency::plan_rise() {
  PageEntry* const best = first_unpinned(disk_);
  return best == nullptr ? std::nullopt : plan_warming(*best, Takes::kPlaces);
}

std::optional<PageMove> Residency::plan_demotion(PageEntry& page) {
  Tier to = Tier::kHost;
  int32_t slot = take_host_slot(page);
  if (slot == kNoSlot) {
    to = Tier::kDisk;
    slot = take_disk_slot();
  }
  if (slot == kNoSlot) return std::nullopt;
  return start_move(page, to, slot);
}

PageMove Residency::start_move(PageEntry& page, Tier to, int32_t to_slot) {
  const Tier from = page.slots.best();
  pin(page);
  ++moving_;
  return {.keep_alive = page.column->shared_from_this(),
          .page = &page,
          .from = from,
          .to = to,
          .from_slot = page.slots[from],
          .to_slot = to_slot};
}

// A page that was pinned or forgotten while it moved stays as it was.
void Residency::finish(const PageMove& move, bool copied) {
  PageEntry& page = *move.page;
  --moving_;
  if (!copied || page.column->dead || page.state == PageState::kDropped || page.pins > 1) {
    give(move.to, move.to_slot);
    unpin(page);
    return;
  }
  dequeue(page);
  page.slots[move.to] = move.to_slot;
  if (page.column->content_key) ++cached_slots_[move.to];
  const bool stays_as_copy = (move.from == Tier::kHost && move.to == Tier::kDevice) ||
                             (move.from == Tier::kDisk && move.to == Tier::kHost);
  if (!stays_as_copy) drop(page, move.from);
  // Two copies are enough.
  if (move.to == Tier::kDevice && page.slots.has(Tier::kDisk)) drop(page, Tier::kDisk);
  if (move.from == Tier::kDevice) ++evictions_;
  ++moves_[move.from][move.to];
  enqueue(page);
  unpin(page);
}

void Residency::give(Tier tier, int32_t slot) {
  pool(tier).give(slot);
}

void Residency::count_cached(PageColumn& column, int64_t sign) {
  for (const PageEntry& page : column.entries()) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      if (page.slots.has(tier)) cached_slots_[tier] += sign;
    }
  }
}

void Residency::drop(PageEntry& page, Tier tier) {
  if (page.column->content_key) --cached_slots_[tier];
  give(tier, page.slots[tier]);
  page.slots[tier] = kNoSlot;
}

bool Residency::has_two_copies(const PageEntry& page) {
  return page.slots.has(Tier::kHost) &&
         (page.slots.has(Tier::kDevice) || page.slots.has(Tier::kDisk));
}

EvictionQueue& Residency::queue_of(const PageEntry& page) {
  if (page.slots.has(Tier::kDevice)) {
    if (!page.slots.has(Tier::kHost)) return dirty_;
    return page.set_aside ? pinned_clean_ : clean_;
  }
  if (!page.slots.has(Tier::kHost)) return disk_;
  if (!page.slots.has(Tier::kDisk)) return host_;
  return page.set_aside ? pinned_backed_ : backed_;
}

// With a single tier no page ever gives way to another.
void Residency::enqueue(PageEntry& page) {
  if (transit_slots_ == 0 || (page.pins > 0 && !has_two_copies(page))) return;
  queue_of(page).insert(page);
}

void Residency::dequeue(PageEntry& page) {
  if (page.queue_index >= 0) queue_of(page).remove(page);
  page.set_aside = false;
}

PageEntry* Residency::first_unpinned(EvictionQueue& queue, EvictionQueue* aside) {
  while (!queue.empty() && queue.front().pins > 0) {
    PageEntry& pinned = queue.front();
    queue.remove(pinned);
    if (aside == nullptr) continue;
    pinned.set_aside = true;
    aside->insert(pinned);
  }
  return queue.empty() ? nullptr : &queue.front();
}

void Residency::evict_clean(PageEntry& page) {
  drop_copy(page, Tier::kDevice);
  ++evictions_;
}

void Residency::drop_copy(PageEntry& page, Tier tier) {
  dequeue(page);
  drop(page, tier);
  enqueue(page);
}

// The clean page of highest worth gives up its host copy, because it will be the last to be evicted
// from the device. Otherwise a page that is also on disk gives up its host copy to a page worth
// more.
int32_t Residency::take_host_slot(const PageEntry& page) {
  if (pool(Tier::kHost).free() == 0) {
    const EvictionQueue& clean = clean_.empty() ? pinned_clean_ : clean_;
    if (!clean.empty()) {
      drop_copy(clean.back(), Tier::kHost);
    } else if (PageEntry* const least = first_unpinned(backed_, &pinned_backed_);
               least != nullptr && worth_less(*least, page)) {
      drop_copy(*least, Tier::kHost);
    }
  }
  return pool(Tier::kHost).take();
}

// Drops, if need be, the disk copy of a page that will be the last to leave the host.
int32_t Residency::take_disk_slot() {
  const EvictionQueue& backed = backed_.empty() ? pinned_backed_ : backed_;
  if (pool(Tier::kDisk).free() == 0 && !backed.empty()) drop_copy(backed.back(), Tier::kDisk);
  return pool(Tier::kDisk).take();
}

void Residency::count_hit(PageEntry& page) {
  PagePriority priority = page.priority;
  priority.hits = std::min<uint8_t>(kMaxHits, priority.hits + 1);
  set_priority(page, priority);
}

void Residency::halve_hits(PageEntry& page) {
  PagePriority priority = page.priority;
  priority.hits /= 2;
  set_priority(page, priority);
}

}  // namespace millrace::kvstore
