// SPDX-License-Identifier: Apache-2.0
#include "decode/pool/page_pool.h"

#include <algorithm>
#include <cmath>

namespace millrace::decode {

namespace {

// In steps.
constexpr double kHalfLife = 8;
// In log2 of uses: pages that differ by less count as equal, because a page may or may not have had
// its use of this step yet.
constexpr double kAlike = 0.5;
constexpr float kNever = -1e30F;

using kvclient::PageName;

}  // namespace

void PoolCounts::add(const PoolCounts& other) {
  hits += other.hits;
  predicted += other.predicted;
  late += other.late;
  misses += other.misses;
}

PagePool::Pins& PagePool::Pins::operator=(Pins&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = other.pool_;
  slots_ = std::move(other.slots_);
  other.slots_.clear();
  return *this;
}

const std::byte* PagePool::Pins::page(size_t i) const {
  return pool_->memory(slots_[i]);
}

void PagePool::Pins::release() {
  if (slots_.empty()) return;
  const std::lock_guard lock(pool_->mutex_);
  for (const int32_t slot : slots_) {
    if (slot >= 0) --pool_->slots_[static_cast<size_t>(slot)].pins;
  }
  slots_.clear();
  pool_->changed_.notify_all();
}

PagePool::PagePool(PageSource& source, const Options& options)
    : options_(options),
      source_(source),
      memory_(options.num_slots * options.page_bytes),
      slots_(static_cast<size_t>(options.num_slots)) {
  MR_CHECK(options.num_slots > 0, "a pool of {} pages", options.num_slots);
  const int64_t pages = options.num_layers * options.num_kv_heads * options.num_pages;
  slot_of_.assign(static_cast<size_t>(pages), -1);
  uses_.assign(static_cast<size_t>(pages), kNever);
  last_step_.assign(static_cast<size_t>(pages), -1);
  if (options.eviction == Eviction::kLeastRecent) last_use_.resize(static_cast<size_t>(pages));
  stats_.layers.resize(static_cast<size_t>(options.num_layers));
  for (int64_t slot = options.num_slots; slot-- > 0;) {
    empty_.push_back(static_cast<int32_t>(slot));
  }
}

int64_t PagePool::number_of(const PageName& name) const {
  const int64_t head = name.kv_head - options_.first_kv_head;
  MR_CHECK(name.layer >= 0 && name.layer < options_.num_layers && head >= 0 &&
               head < options_.num_kv_heads && name.page >= 0 && name.page < options_.num_pages,
           "layer {}, kv head {}, page {}: not of this pool", name.layer, name.kv_head, name.page);
  return (name.layer * options_.num_kv_heads + head) * options_.num_pages + name.page;
}

std::byte* PagePool::memory(int32_t slot) {
  return memory_.as<std::byte>() + slot * options_.page_bytes;
}

void PagePool::begin_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = static_cast<int32_t>(step);
}

void PagePool::set_score(const PageName& name, float score) {
  const std::lock_guard lock(mutex_);
  const auto page = static_cast<size_t>(number_of(name));
  // Less than any use, and in the order of the scores.
  if (last_step_[page] < 0) uses_[page] = score > 0 ? std::log2(score) - 1 : kNever;
}

// Instead of halving the uses of all pages, a use counts twice as much kHalfLife steps later.
void PagePool::use(int64_t page) {
  const auto at = static_cast<size_t>(page);
  if (options_.eviction == Eviction::kLeastRecent) last_use_[at] = ++num_uses_;
  if (last_step_[at] == step_) return;
  last_step_[at] = step_;
  const auto now = static_cast<float>(step_ / kHalfLife);
  const float more = std::max(now, uses_[at]), less = std::min(now, uses_[at]);
  uses_[at] = more + std::log2(1 + std::exp2(less - more));
}

// Uses as of the step in which the page can next be used, relative to the steps before it: a page
// that every token reads has 1, whether its layer comes before or after the one being computed.
PagePool::Worth PagePool::worth(const Slot& slot) const {
  const auto at = static_cast<size_t>(slot.page);
  const int32_t layer = layer_of(slot.page);
  // It came for a layer that has not read it yet.
  if (slot.news != News::kNone && (layer == layer_ || layer == layer_ + 1)) return {.uses = 1e30};
  if (options_.eviction == Eviction::kLeastRecent) {
    return {.uses = static_cast<double>(last_use_[at])};
  }
  const bool in_this_step = layer >= layer_ && last_step_[at] != step_;
  const int32_t next = step_ + (in_this_step ? 0 : 1);
  const double at_most =
      next == 0 ? 0
                : std::log2((1 - std::exp2(-next / kHalfLife)) / (std::exp2(1 / kHalfLife) - 1));
  return {.uses = std::round((double{uses_[at]} - next / kHalfLife - at_most) / kAlike),
          .nearness = -(layer - layer_ + (in_this_step ? 0 : options_.num_layers))};
}

std::vector<int32_t> PagePool::take_slots(size_t count, bool evict) {
  std::vector<int32_t> taken;
  while (taken.size() < count && !empty_.empty()) {
    taken.push_back(empty_.back());
    empty_.pop_back();
  }
  if (evict && taken.size() < count) {
    struct Idle {
      Worth worth;
      int64_t page;
      int32_t slot;
      auto operator<=>(const Idle&) const = default;
    };
    std::vector<Idle> idle;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].state == State::kHere && slots_[i].pins == 0) {
        idle.push_back({worth(slots_[i]), slots_[i].page, static_cast<int32_t>(i)});
      }
    }
    const size_t wanted = std::min(count - taken.size(), idle.size());
    std::nth_element(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(wanted), idle.end());
    for (size_t i = 0; i < wanted; ++i) {
      slot_of_[static_cast<size_t>(idle[i].page)] = -1;
      taken.push_back(idle[i].slot);
      ++stats_.evictions;
    }
  }
  for (const int32_t slot : taken) {
    slots_[static_cast<size_t>(slot)] = {.state = State::kLoading};
  }
  return taken;
}

void PagePool::put(const PageName& name, int32_t slot) {
  const int64_t number = number_of(name);
  slots_[static_cast<size_t>(slot)].page = number;
  slot_of_[static_cast<size_t>(number)] = slot;
}

void PagePool::give_back(int32_t slot) {
  Slot& given = slots_[static_cast<size_t>(slot)];
  if (given.page >= 0) slot_of_[static_cast<size_t>(given.page)] = -1;
  given = {};
  empty_.push_back(slot);
}

Result<void> PagePool::load(std::span<const PageName> names, std::span<const int32_t> slots,
                            FetchUrgency urgency, Deadline deadline) {
  std::vector<kvclient::NamedPage> pages;
  pages.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) pages.push_back({names[i], memory(slots[i])});
  std::sort(pages.begin(), pages.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  auto fetched = source_.fetch(pages, urgency, deadline);
  const std::lock_guard lock(mutex_);
  for (const int32_t slot : slots) {
    if (fetched.ok()) {
      slots_[static_cast<size_t>(slot)].state = State::kHere;
    } else {
      give_back(slot);
    }
  }
  if (fetched.ok()) {
    auto& count = urgency == FetchUrgency::kNeed         ? stats_.needed_pages
                  : urgency == FetchUrgency::kPrediction ? stats_.predicted_pages
                                                         : stats_.filled_pages;
    count += std::ssize(names);
  }
  changed_.notify_all();
  return fetched;
}

Result<PagePool::Pins> PagePool::acquire(std::span<const PageName> names, Deadline deadline) {
  Pins pins;
  pins.pool_ = this;
  pins.slots_.assign(names.size(), -1);
  std::vector<bool> late(names.size());
  std::unique_lock lock(mutex_);
  if (!names.empty()) layer_ = names.front().layer;
  while (true) {
    const Search found = pin_what_is_here(names, pins, late);
    if (found.missing.empty() && !found.waiting) return pins;
    const auto slots = take_slots(found.missing.size(), /*evict=*/true);
    if (!slots.empty()) {
      std::vector<PageName> missing;
      for (size_t i = 0; i < slots.size(); ++i) {
        const PageName& name = names[found.missing[i]];
        put(name, slots[i]);
        Slot& slot = slots_[static_cast<size_t>(slots[i])];
        slot.pins = 1;
        use(slot.page);
        pins.slots_[found.missing[i]] = slots[i];
        if (!late[found.missing[i]]) ++counts(name).misses;
        missing.push_back(name);
      }
      lock.unlock();
      const auto loaded = load(missing, slots, FetchUrgency::kNeed, deadline);
      if (!loaded.ok()) {  // and the slots are no longer ours
        for (size_t i = 0; i < slots.size(); ++i) pins.slots_[found.missing[i]] = -1;
        return loaded.error();
      }
      lock.lock();
      continue;
    }
    const bool coming = std::any_of(slots_.begin(), slots_.end(),
                                    [](const Slot& slot) { return slot.state == State::kLoading; });
    if (coming && !deadline.passed()) {
      changed_.wait_until(lock, deadline.when());
      continue;
    }
    return error(coming ? Errc::kDeadlineExceeded : Errc::kExhausted,
                 "a pool of {} pages has no room for {} at once", options_.num_slots, names.size());
  }
}

PagePool::Search PagePool::pin_what_is_here(std::span<const PageName> names, Pins& pins,
                                            std::vector<bool>& late) {
  Search found;
  for (size_t i = 0; i < names.size(); ++i) {
    if (pins.slots_[i] >= 0) continue;
    const int32_t at = slot_of_[static_cast<size_t>(number_of(names[i]))];
    if (at < 0) {
      found.missing.push_back(i);
      continue;
    }
    Slot& slot = slots_[static_cast<size_t>(at)];
    PoolCounts& count = counts(names[i]);
    if (slot.state == State::kLoading) {
      if (!late[i]) ++count.late;
      late[i] = true;
      found.waiting = true;
      continue;
    }
    if (!late[i]) ++(slot.news == News::kNeeded ? count.misses : count.hits);
    if (slot.news == News::kPredicted) ++count.predicted;
    slot.news = News::kNone;
    ++slot.pins;
    use(slot.page);
    pins.slots_[i] = at;
  }
  return found;
}

Result<int64_t> PagePool::bring(std::span<const PageName> names, FetchUrgency urgency,
                                Deadline deadline) {
  std::vector<PageName> missing;
  std::vector<int32_t> slots;
  {
    const std::lock_guard lock(mutex_);
    // Named pages that are here must stay: they would be the next to be fetched.
    std::vector<int32_t> held;
    for (const PageName& name : names) {
      const int32_t slot = slot_of_[static_cast<size_t>(number_of(name))];
      if (slot < 0) {
        missing.push_back(name);
      } else {
        ++slots_[static_cast<size_t>(slot)].pins;
        held.push_back(slot);
      }
    }
    slots = take_slots(missing.size(), urgency != FetchUrgency::kFill);
    for (const int32_t slot : held) --slots_[static_cast<size_t>(slot)].pins;
    missing.resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots_[static_cast<size_t>(slots[i])];
      put(missing[i], slots[i]);
      if (urgency != FetchUrgency::kFill) {
        slot.news = urgency == FetchUrgency::kNeed ? News::kNeeded : News::kPredicted;
      }
    }
  }
  if (missing.empty()) return 0;
  MR_RETURN_IF_ERROR(load(missing, slots, urgency, deadline));
  return std::ssize(missing);
}

Result<bool> PagePool::fill(std::span<const PageName> names, Deadline deadline) {
  const auto came = bring(names, FetchUrgency::kFill, deadline);
  if (!came.ok()) return came.error();
  const std::lock_guard lock(mutex_);
  return !empty_.empty();
}

bool PagePool::has(const PageName& name) const {
  const std::lock_guard lock(mutex_);
  const int32_t slot = slot_of_[static_cast<size_t>(number_of(name))];
  return slot >= 0 && slots_[static_cast<size_t>(slot)].state == State::kHere;
}

PoolStats PagePool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace millrace::decode
