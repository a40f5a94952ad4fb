#include "kvstore/residency.h"

#include <algorithm>

namespace millrace::kvstore {
namespace {

// Room for the one move that is under way at a time. With a single tier nothing moves.
constexpr int64_t kTransitSlots = 1;

int64_t count_tiers(const std::array<int64_t, kNumTiers>& max_slots) {
  return std::count_if(max_slots.begin(), max_slots.end(), [](int64_t n) { return n > 0; });
}

}  // namespace

Residency::Residency(const std::array<int64_t, kNumTiers>& max_slots)
    : max_slots_(max_slots),
      clean_(max_slots[static_cast<int>(Tier::kDevice)]),
      pinned_clean_(max_slots[static_cast<int>(Tier::kDevice)]),
      dirty_(max_slots[static_cast<int>(Tier::kDevice)]),
      transit_slots_(count_tiers(max_slots) > 1 ? kTransitSlots : 0) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) pool(tier).grow(slots_total(tier));
}

int64_t Residency::slack() const {
  int64_t free = 0;
  for (const SlotPool& tier : pools_) free += tier.free();
  return free + clean_.size() + pinned_clean_.size() - unwritten_;
}

int64_t Residency::available() const {
  const int64_t disk_growth = slots_total(Tier::kDisk) - pool(Tier::kDisk).size();
  return std::max<int64_t>(0, slack() + disk_growth - transit_slots_);
}

int64_t Residency::disk_shortfall(int64_t num_pages) const {
  return std::max<int64_t>(0, num_pages + transit_slots_ - slack());
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
// host copy of a page that stays on the device gives way to a page that has no other home.
PageSlots Residency::take_for_write(const PageEntry& page) {
  PageSlots slots;
  unreserve(1);
  if (pool(Tier::kDevice).free() == 0 && !clean_.empty() && worth_less(clean_.min(), page)) {
    evict_clean(clean_.min());
  }
  if (slots[Tier::kDevice] = pool(Tier::kDevice).take(); slots.has(Tier::kDevice)) {
    if (slack() > transit_slots_) slots[Tier::kHost] = pool(Tier::kHost).take();
    return slots;
  }
  if (slots[Tier::kHost] = take_host_slot(); slots.has(Tier::kHost)) return slots;
  slots[Tier::kDisk] = pool(Tier::kDisk).take();
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
  dequeue(page);
  ++page.pins;
  enqueue(page);
}

void Residency::unpin(PageEntry& page) {
  MR_CHECK(page.pins > 0, "unpin of a page without pins");
  dequeue(page);
  --page.pins;
  if (page.pins == 0 && page.table->dead) {
    free_unpinned(page);
  } else {
    enqueue(page);
  }
}

void Residency::free_unpinned(PageEntry& page) {
  if (page.state != PageState::kWritten) return;
  dequeue(page);
  const Tier pinned = page.slots.best();
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!page.slots.has(tier) || (page.pins > 0 && tier == pinned)) continue;
    drop(page, tier);
  }
}

void Residency::set_priority(PageEntry& page, PagePriority priority) {
  page.priority = priority;
  if (page.queue_index >= 0) queue_of(page)->restore_order(page);
}

std::optional<PageMove> Residency::plan_promotion(PageEntry& page) {
  if (page.table->dead || page.pins > 0 || page.slots.has(Tier::kDevice) || slack() < 1) {
    return std::nullopt;
  }
  if (pool(Tier::kDevice).free() == 0) {
    PageEntry* lowest = clean_.empty() ? nullptr : &clean_.min();
    if (!dirty_.empty() && (lowest == nullptr || worth_less(dirty_.min(), *lowest))) {
      lowest = &dirty_.min();
    }
    if (lowest == nullptr || !worth_less(*lowest, page)) return std::nullopt;
    if (!lowest->slots.has(Tier::kHost)) return plan_demotion(*lowest);
    evict_clean(*lowest);
  }
  return start_move(page, Tier::kDevice, pool(Tier::kDevice).take());
}

std::optional<PageMove> Residency::plan_warming(PageEntry& page) {
  if (page.table->dead || page.pins > 0 || page.slots.best() != Tier::kDisk || slack() < 1) {
    return std::nullopt;
  }
  const int32_t slot = take_host_slot();
  if (slot == kNoSlot) return std::nullopt;
  return start_move(page, Tier::kHost, slot);
}

std::optional<PageMove> Residency::plan_demotion(PageEntry& page) {
  Tier to = Tier::kHost;
  int32_t slot = take_host_slot();
  if (slot == kNoSlot) {
    to = Tier::kDisk;
    slot = pool(Tier::kDisk).take();
  }
  if (slot == kNoSlot) return std::nullopt;
  return start_move(page, to, slot);
}

PageMove Residency::start_move(PageEntry& page, Tier to, int32_t to_slot) {
  const Tier from = page.slots.best();
  dequeue(page);
  ++page.pins;
  return {.keep_alive = page.table->shared_from_this(),
          .page = &page,
          .from = from,
          .to = to,
          .from_slot = page.slots[from],
          .to_slot = to_slot};
}

// A page that was pinned or forgotten while it moved stays as it was.
void Residency::finish(const PageMove& move, bool copied) {
  PageEntry& page = *move.page;
  if (!copied || page.table->dead || page.pins > 1) {
    give(move.to, move.to_slot);
    unpin(page);
    return;
  }
  page.slots[move.to] = move.to_slot;
  // Only a device page with a host copy has two copies: that makes it clean.
  const bool stays_as_copy = move.from == Tier::kHost && move.to == Tier::kDevice;
  if (!stays_as_copy) drop(page, move.from);
  if (move.from == Tier::kDevice) ++evictions_;
  unpin(page);
}

void Residency::give(Tier tier, int32_t slot) {
  pool(tier).give(slot);
}

void Residency::drop(PageEntry& page, Tier tier) {
  give(tier, page.slots[tier]);
  page.slots[tier] = kNoSlot;
}

EvictionQueue* Residency::queue_of(const PageEntry& page) {
  if (!page.slots.has(Tier::kDevice)) return nullptr;
  if (page.slots.has(Tier::kHost)) return page.pins > 0 ? &pinned_clean_ : &clean_;
  return page.pins > 0 ? nullptr : &dirty_;
}

void Residency::enqueue(PageEntry& page) {
  if (EvictionQueue* queue = queue_of(page)) queue->insert(page);
}

void Residency::dequeue(PageEntry& page) {
  if (page.queue_index >= 0) queue_of(page)->remove(page);
}

void Residency::evict_clean(PageEntry& page) {
  dequeue(page);
  drop(page, Tier::kDevice);
  ++evictions_;
}

// A page high in worth gives its host copy: it will be the last to be evicted.
int32_t Residency::take_host_slot() {
  const EvictionQueue& clean = clean_.empty() ? pinned_clean_ : clean_;
  if (pool(Tier::kHost).free() == 0 && !clean.empty()) {
    PageEntry& page = clean.high();
    dequeue(page);
    drop(page, Tier::kHost);
    enqueue(page);
  }
  return pool(Tier::kHost).take();
}

}  // namespace millrace::kvstore
