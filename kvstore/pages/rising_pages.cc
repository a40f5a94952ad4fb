// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/rising_pages.h"

namespace millrace::kvstore {

void RisingPages::pulled(PageEntry& page) {
  residency_.count_hit(page);
  const bool rises =
      lifts_ && page.priority.hits >= kRisingHits && !page.rises && !page.slots.has(Tier::kDevice);
  if (!rises) return;
  if (pages_.size() == kMaxPages) forget_first();
  page.rises = true;
  pages_.push_back({.column = page.column->weak_from_this(), .row = page.column->row_of(page)});
}

void RisingPages::begun_with(const std::shared_ptr<PageColumn>& column) {
  if (!lifts_) return;
  if (columns_.size() == kMaxColumns) columns_.pop_front();
  columns_.push_back(column);
}

bool RisingPages::count_prefix() {
  if (columns_.empty()) return false;
  const auto column = columns_.front().lock();
  columns_.pop_front();
  if (column == nullptr || column->dead) return true;
  for (PageEntry& page : column->entries()) {
    if (page.state == PageState::kWritten) pulled(page);
  }
  return true;
}

std::optional<PageMove> RisingPages::plan() {
  while (!pages_.empty()) {
    const auto column = pages_.front().column.lock();
    if (column != nullptr) {
      if (auto move = residency_.plan_lift(column->entry(pages_.front().row))) return move;
    }
    forget_first();
  }
  return std::nullopt;
}

void RisingPages::give_up() {
  if (!pages_.empty()) forget_first();
}

void RisingPages::forget_first() {
  const auto& first = pages_.front();
  if (const auto column = first.column.lock()) column->entry(first.row).rises = false;
  pages_.pop_front();
}

}  // namespace millrace::kvstore
