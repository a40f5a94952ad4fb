// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/page_table.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::kvstore {

PageTable::PageTable(std::string request_id, const KvGeometry& geometry, int64_t num_tokens,
                     std::span<const int64_t> pages, int64_t sequence,
                     std::vector<std::shared_ptr<PageColumn>> prefix)
    : request_id_(std::move(request_id)),
      geometry_(geometry),
      num_prompt_pages_(ceil_div(num_tokens, geometry.page_tokens)),
      sequence_(sequence),
      columns_(std::move(prefix)),
      num_prefix_columns_(columns_.size()),
      scored_(static_cast<size_t>(num_rows())) {
  for (const auto& column : columns_) pages_.push_back(column->page());
  columns_.reserve(columns_.size() + pages.size());
  for (const int64_t page : pages) {
    pages_.push_back(page);
    columns_.push_back(
        std::make_shared<PageColumn>(request_id_, geometry, page, num_prompt_pages_, sequence));
    columns_.back()->num_requests = 1;
  }
  scores_.resize(static_cast<size_t>(num_entries()));
  num_written = static_cast<int64_t>(num_prefix_columns_) * num_rows();
  num_unwritten = num_entries() - num_written;
}

Result<int64_t> PageTable::row_of(int32_t layer, int32_t kv_head) const {
  const int32_t local_head = kv_head - geometry_.first_kv_head;
  if (layer < 0 || layer >= geometry_.num_layers) {
    return error(Errc::kNotFound, "request '{}': layer {} of {}", request_id_, layer,
                 geometry_.num_layers);
  }
  if (local_head < 0 || local_head >= geometry_.num_kv_heads) {
    return error(Errc::kNotFound, "request '{}': kv head {}, this rank holds [{}, {})", request_id_,
                 kv_head, geometry_.first_kv_head,
                 geometry_.first_kv_head + geometry_.num_kv_heads);
  }
  return int64_t{layer} * geometry_.num_kv_heads + local_head;
}

Result<std::vector<PageEntry*>> PageTable::head(int32_t layer, int32_t kv_head) {
  MR_ASSIGN_OR_RETURN(const int64_t row, row_of(layer, kv_head));
  std::vector<PageEntry*> entries;
  entries.reserve(columns_.size());
  for (const auto& column : columns_) entries.push_back(&column->entry(row));
  return entries;
}

Result<std::vector<PageEntry*>> PageTable::select(int32_t layer, int32_t kv_head,
                                                  std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(const int64_t row, row_of(layer, kv_head));
  if (pages.empty()) {
    return error(Errc::kInvalidArgument, "request '{}': no pages are named", request_id_);
  }
  std::vector<PageEntry*> entries;
  entries.reserve(pages.size());
  auto next = pages_.begin();
  for (size_t i = 0; i < pages.size(); ++i) {
    if (i > 0 && pages[i] <= pages[i - 1]) {
      return error(Errc::kInvalidArgument, "request '{}': page {} after {}; pages must ascend",
                   request_id_, pages[i], pages[i - 1]);
    }
    // Pages are usually consecutive, which needs no search.
    if (next == pages_.end() || *next != pages[i]) {
      next = std::lower_bound(next, pages_.end(), pages[i]);
    }
    if (next == pages_.end() || *next != pages[i]) {
      return error(Errc::kNotFound,
                   "request '{}': page {} is not among the {} of {} prompt pages this rank holds",
                   request_id_, pages[i], pages_.size(), num_prompt_pages_);
    }
    if (is_dropped(row, next - pages_.begin())) {
      return error(
          Errc::kNotFound,
          "request '{}': layer {} kv head {} page {} was dropped, its cache is kept in part",
          request_id_, layer, kv_head, pages[i]);
    }
    entries.push_back(&columns_[static_cast<size_t>(next - pages_.begin())]->entry(row));
    ++next;
  }
  return entries;
}

void PageTable::set_scores(int64_t row, std::span<const float> scores) {
  std::ranges::copy(scores, scores_.begin() + row * std::ssize(pages_));
  scored_[static_cast<size_t>(row)] = true;
}

std::span<const float> PageTable::scores(int64_t row) const {
  return std::span(scores_).subspan(static_cast<size_t>(row) * pages_.size(), pages_.size());
}

float PageTable::score_of(const PageEntry& entry) const {
  return scores(entry.column->row_of(entry))[static_cast<size_t>(place_of(entry))];
}

int64_t PageTable::place_of(const PageEntry& entry) const {
  return std::ranges::lower_bound(pages_, entry.column->page()) - pages_.begin();
}

void PageTable::drop(const PageEntry& entry) {
  if (dropped_.empty()) dropped_.resize(static_cast<size_t>(num_entries()));
  const auto at = entry.column->row_of(entry) * std::ssize(pages_) + place_of(entry);
  dropped_[static_cast<size_t>(at)] = true;
  ++num_dropped_;
}

Result<void> PageTable::check_readable(std::span<PageEntry* const> entries) const {
  if (sealed || entries.empty()) return {};
  const auto row = static_cast<size_t>(entries.front()->column->row_of(*entries.front()));
  const auto missing =
      scored_[row] ? std::ranges::find_if(
                         entries, [](auto* entry) { return entry->state != PageState::kWritten; })
                   : entries.begin();
  if (missing == entries.end()) return {};
  const PageKey key = (*missing)->column->key_of(**missing);
  return error(Errc::kUnavailable,
               "request '{}': layer {} kv head {} page {} is not there yet; {} of {} pages are",
               request_id_, key.layer, key.kv_head, key.page, num_written, num_entries());
}

}  // namespace millrace::kvstore
