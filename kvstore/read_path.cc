// SPDX-License-Identifier: Apache-2.0
#include "kvstore/read_path.h"

#include <algorithm>
#include <utility>

namespace millrace::kvstore {

ReadPath::ReadPath(const PageIo& io, Residency& residency, RisingPages& rising,
                   const StoredRequests& requests, const PrefixCache& cache, std::mutex& mutex,
                   const Clock& clock, int64_t read_bytes, int64_t read_ahead_bytes)
    : io_(io),
      residency_(residency),
      rising_(rising),
      requests_(requests),
      cache_(cache),
      mutex_(mutex),
      clock_(clock),
      budget_(read_bytes),
      read_ahead_(io, residency, mutex, clock, read_ahead_bytes),
      cooled_at_(clock.now()) {}

Result<std::unique_ptr<PinnedPages>> ReadPath::pin_prefix(const std::string& request_id,
                                                          int32_t layer, int32_t kv_head,
                                                          std::span<const int64_t> pages) {
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(auto table, requests_.find_running(request_id));
  MR_ASSIGN_OR_RETURN(auto entries, table->select(layer, kv_head, pages));
  for (PageEntry* page : entries) {
    if (page->state == PageState::kWritten) continue;
    return error(Errc::kInvalidArgument, "request '{}': page {} is not of its prefix", request_id,
                 page->column->page());
  }
  return std::unique_ptr<PinnedPages>(hold_pages(std::move(table), std::move(entries)));
}

Result<std::unique_ptr<PinnedPages>> ReadPath::pin_pages(const std::string& request_id,
                                                         const std::string& lease_id, int32_t layer,
                                                         int32_t kv_head,
                                                         std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(auto pins, pin_in_place(request_id, lease_id, layer, kv_head, pages));
  MR_RETURN_IF_ERROR(pins->load());
  return pins;
}

Result<std::unique_ptr<PinnedPages>> ReadPath::pin_in_place(const std::string& request_id,
                                                            const std::string& lease_id,
                                                            int32_t layer, int32_t kv_head,
                                                            std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(auto pins, hold(request_id, lease_id, layer, kv_head, pages));
  follow(*pins);
  pins->count_in_place();
  return std::unique_ptr<PinnedPages>(std::move(pins));
}

Result<std::unique_ptr<PinnedPages>> ReadPath::pin_digests(const std::string& request_id,
                                                           const std::string& lease_id,
                                                           int32_t layer, int32_t kv_head,
                                                           std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(auto pins, hold(request_id, lease_id, layer, kv_head, pages));
  return std::unique_ptr<PinnedPages>(std::move(pins));
}

Result<std::unique_ptr<Pins>> ReadPath::hold(const std::string& request_id,
                                             const std::string& lease_id, int32_t layer,
                                             int32_t kv_head, std::span<const int64_t> pages) {
  std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(const auto table, requests_.find_leased(request_id, lease_id));
  MR_ASSIGN_OR_RETURN(auto entries, table->select(layer, kv_head, pages));
  MR_RETURN_IF_ERROR(table->check_readable(entries));
  table->has_been_read = true;
  return hold_pages(table, std::move(entries));
}

std::unique_ptr<Pins> ReadPath::hold_pages(std::shared_ptr<PageTable> table,
                                           std::vector<PageEntry*> entries) {
  residency_.pin_for_reader(entries);
  rising_.bus_used();
  return std::make_unique<Pins>(
      Pins::Source{.io = io_,
                   .budget = budget_,
                   .read_ahead = [this, of = table.get()](
                                     const PageEntry& page) { return take_read_ahead(*of, page); },
                   .count = [this](auto held, auto found) { count_hits(held, found); }},
      std::move(table), std::move(entries),
      [this](std::span<PageEntry* const> held) { unpin(held); });
}

// A long prompt has hundreds of thousands of pages: the lock is taken for one head at a time.
Result<std::vector<float>> ReadPath::scores(const std::string& request_id,
                                            const std::string& lease_id,
                                            const HeadBlock& heads) const {
  if (heads.num_layers <= 0 || heads.num_kv_heads <= 0) {
    return error(Errc::kInvalidArgument, "request '{}': scores of {} layers, {} kv heads",
                 request_id, heads.num_layers, heads.num_kv_heads);
  }
  std::vector<float> scores;
  for (int32_t layer = 0; layer < heads.num_layers; ++layer) {
    for (int32_t head = 0; head < heads.num_kv_heads; ++head) {
      const std::lock_guard lock(mutex_);
      MR_RETURN_IF_ERROR(append_scores(request_id, lease_id, heads.first_layer + layer,
                                       heads.first_kv_head + head, scores));
    }
  }
  return scores;
}

Result<void> ReadPath::append_scores(const std::string& request_id, const std::string& lease_id,
                                     int32_t layer, int32_t kv_head,
                                     std::vector<float>& scores) const {
  MR_ASSIGN_OR_RETURN(const auto table, requests_.find_leased(request_id, lease_id));
  MR_ASSIGN_OR_RETURN(const int64_t row, table->row_of(layer, kv_head));
  MR_ASSIGN_OR_RETURN(const auto pages, table->head(layer, kv_head));
  MR_RETURN_IF_ERROR(table->check_readable(pages));
  const auto of_row = table->scores(row);
  scores.insert(scores.end(), of_row.begin(), of_row.end());
  return {};
}

void ReadPath::follow(const Pins& pins) {
  if (residency_.slots_total(Tier::kDisk) == 0) return;
  std::lock_guard lock(mutex_);
  PageTable& table = pins.table();
  if (!table.dead) read_ahead_.follow(table, pins.entries());
  if (read_ahead_.has_targets()) reader_came_.notify_one();
}

std::optional<ReadMemory> ReadPath::take_read_ahead(const PageTable& table, const PageEntry& page) {
  std::lock_guard lock(mutex_);
  return read_ahead_.take(table, page);
}

void ReadPath::count_hits(std::span<PageEntry* const> entries, std::span<const PinnedPage> pages) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < pages.size(); ++i) {
    ++page_hits_[pages[i].tier];
    rising_.pulled(*entries[i]);
  }
}

void ReadPath::wait_for_reader(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!deadline.passed()) reader_came_.wait_until(lock, deadline.when());
}

void ReadPath::cool_pages() {
  // Few enough that nobody waits long for the lock.
  constexpr int64_t kPagesAtOnce = 4096;
  std::vector<std::shared_ptr<PageColumn>> columns;
  {
    std::lock_guard lock(mutex_);
    if (clock_.now() - cooled_at_ < kHitHalfLife) return;
    cooled_at_ = clock_.now();
    for (const auto& [id, table] : requests_.tables()) {
      columns.insert(columns.end(), table->columns().begin(), table->columns().end());
    }
    for (const auto& [key, column] : cache_.columns()) columns.push_back(column);
  }
  std::ranges::sort(columns);
  const auto twice = std::ranges::unique(columns);
  columns.erase(twice.begin(), twice.end());
  if (columns.empty()) return;
  const auto at_once =
      static_cast<size_t>(std::max<int64_t>(1, kPagesAtOnce / columns.front()->num_entries()));
  for (size_t first = 0; first < columns.size(); first += at_once) {
    std::lock_guard lock(mutex_);
    for (size_t i = first; i < std::min(first + at_once, columns.size()); ++i) {
      for (PageEntry& page : columns[i]->entries()) {
        if (page.priority.hits > 0) residency_.halve_hits(page);
      }
    }
  }
}

void ReadPath::unpin(std::span<PageEntry* const> pages) {
  std::lock_guard lock(mutex_);
  residency_.unpin_for_reader(pages);
  rising_.bus_used();
}

}  // namespace millrace::kvstore
