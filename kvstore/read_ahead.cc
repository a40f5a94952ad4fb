// SPDX-License-Identifier: Apache-2.0
#include "kvstore/read_ahead.h"

#include <algorithm>

#include "common/log.h"

namespace millrace::kvstore {

ReadAhead::ReadAhead(const PageIo& io, Residency& residency, std::mutex& mutex, const Clock& clock,
                     int64_t num_bytes)
    : io_(io), residency_(residency), mutex_(mutex), clock_(clock), budget_(num_bytes) {}

void ReadAhead::follow(PageTable& table, std::span<PageEntry* const> pages) {
  PageKey head = pages.front()->column->key_of(*pages.front());
  const auto carrying = std::count_if(pages.begin(), pages.end(), [](const PageEntry* page) {
    return page->priority.carries_mass;
  });
  const bool all = 2 * carrying <= std::ssize(pages);
  pass(table, head);
  Reader& reader = readers_[&table];
  reader.last = clock_.now();
  ++head.layer;
  Followed& followed = reader.heads[head.kv_head];
  // Requests overtake each other: one for the layer before says nothing new.
  if (followed.layer == head.layer + 1) return;
  if (followed.layer == head.layer && (followed.all || !all)) return;
  const auto next = table.head(head.layer, head.kv_head);
  if (!next.ok()) return;
  followed = {.layer = head.layer, .all = all};
  auto to_read = pages_to_read(*next, all);
  if (to_read.empty()) return;
  targets_.push_back(
      {.table = table.shared_from_this(), .head = head, .pages = std::move(to_read)});
}

std::vector<PageEntry*> ReadAhead::pages_to_read(std::span<PageEntry* const> head, bool all) {
  std::vector<PageEntry*> pages;
  for (PageEntry* page : head) {
    const bool on_disk = page->state == PageState::kWritten && page->slots.best() == Tier::kDisk;
    if (on_disk && (all || page->priority.carries_mass)) pages.push_back(page);
  }
  std::stable_sort(pages.begin(), pages.end(), [](const PageEntry* a, const PageEntry* b) {
    return a->priority < b->priority;
  });
  return pages;
}

// A reader is at this layer: copies for earlier layers come too late.
void ReadAhead::pass(const PageTable& table, const PageKey& head) {
  const Key begin{&table, head.kv_head, 0};
  copies_.erase(copies_.lower_bound(begin), copies_.lower_bound(key_of(table, head)));
  std::erase_if(targets_, [&](const Target& target) {
    return target.table.get() == &table && target.head.kv_head == head.kv_head &&
           target.head.layer <= head.layer;
  });
}

std::optional<ReadMemory> ReadAhead::take(const PageTable& table, const PageEntry& page) {
  const auto of_head = copies_.find(key_of(table, page.column->key_of(page)));
  if (of_head == copies_.end()) return std::nullopt;
  const auto copy = of_head->second.find(&page);
  if (copy == of_head->second.end()) return std::nullopt;
  ReadMemory memory = std::move(copy->second);
  of_head->second.erase(copy);
  if (of_head->second.empty()) copies_.erase(of_head);
  ++pages_taken_;
  return memory;
}

void ReadAhead::forget(const PageTable& table) {
  std::erase_if(copies_, [&](const auto& copies) { return std::get<0>(copies.first) == &table; });
  std::erase_if(targets_, [&](const Target& target) { return target.table.get() == &table; });
  readers_.erase(&table);
}

bool ReadAhead::has_copy(const PageTable& table, const PageEntry& page) const {
  const auto of_head = copies_.find(key_of(table, page.column->key_of(page)));
  return of_head != copies_.end() && of_head->second.contains(&page);
}

bool ReadAhead::drop_abandoned(const PageTable& table) {
  const TimePoint long_ago = clock_.now() - kAbandoned;
  return std::erase_if(copies_, [&](const auto& copies) {
           const PageTable* const other = std::get<0>(copies.first);
           return other != &table && readers_.at(other).last <= long_ago;
         }) > 0;
}

PageEntry* ReadAhead::next_page() {
  while (!targets_.empty()) {
    auto& pages = targets_.front().pages;
    while (!pages.empty()) {
      PageEntry* const page = pages.back();
      if (page->slots.best() == Tier::kDisk && !has_copy(*targets_.front().table, *page))
        return page;
      pages.pop_back();
    }
    targets_.pop_front();
  }
  return nullptr;
}

bool ReadAhead::step() {
  std::shared_ptr<PageTable> table;  // released without the lock: a large one takes time
  std::unique_lock lock(mutex_);
  PageEntry* const page = next_page();
  if (page == nullptr) return false;
  table = targets_.front().table;
  auto memory = budget_.take(io_.page_bytes());
  if (!memory.ok() && drop_abandoned(*table)) memory = budget_.take(io_.page_bytes());
  if (!memory.ok()) return false;
  targets_.front().pages.pop_back();
  residency_.pin(*page);
  const int32_t slot = page->slots[Tier::kDisk];
  lock.unlock();
  const auto read =
      io_.read(Tier::kDisk, slot, *page, {memory->data(), static_cast<size_t>(io_.page_bytes())});
  lock.lock();
  if (read.ok() && !table->dead) {
    copies_[key_of(*table, page->column->key_of(*page))].emplace(page, std::move(*memory));
    ++pages_read_;
  }
  residency_.unpin(*page);
  // A reader who asks for the page gets the error.
  if (!read.ok()) log::warn("kvstore: reading ahead: {}", read.error().to_string());
  return true;
}

}  // namespace millrace::kvstore
