#include "kvstore/page_table.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::kvstore {

Tier PageSlots::best() const {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (has(tier)) return tier;
  }
  MR_CHECK(false, "a page without a copy");
}

PageTable::PageTable(std::string request_id, const KvGeometry& geometry, int64_t num_tokens,
                     std::span<const int64_t> pages, int64_t sequence)
    : request_id_(std::move(request_id)),
      geometry_(geometry),
      num_prompt_pages_(ceil_div(num_tokens, geometry.page_tokens)),
      sequence_(sequence),
      pages_(pages.begin(), pages.end()),
      entries_(pages.size() * geometry.num_layers * geometry.num_kv_heads),
      digests_(num_entries() * geometry.digest_bytes()) {
  num_unwritten = num_entries();
  for (PageEntry& entry : entries_) {
    entry.table = this;
    const PageKey key = key_of(entry);
    entry.priority.keep = keep_without_score(key.layer, key.page, num_prompt_pages_);
  }
}

Result<std::span<PageEntry>> PageTable::head(int32_t layer, int32_t kv_head) {
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
  const size_t row = static_cast<size_t>(layer) * geometry_.num_kv_heads + local_head;
  return std::span(entries_).subspan(row * pages_.size(), pages_.size());
}

Result<std::vector<PageEntry*>> PageTable::select(int32_t layer, int32_t kv_head,
                                                  std::span<const int64_t> pages) {
  MR_ASSIGN_OR_RETURN(const auto all, head(layer, kv_head));
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
    // Side by side as a rule: no search.
    if (next == pages_.end() || *next != pages[i]) {
      next = std::lower_bound(next, pages_.end(), pages[i]);
    }
    if (next == pages_.end() || *next != pages[i]) {
      return error(Errc::kNotFound,
                   "request '{}': page {} is not among the {} of {} prompt pages this rank holds",
                   request_id_, pages[i], pages_.size(), num_prompt_pages_);
    }
    entries.push_back(&all[static_cast<size_t>(next - pages_.begin())]);
    ++next;
  }
  return entries;
}

PageKey PageTable::key_of(const PageEntry& entry) const {
  const auto num_pages = static_cast<int64_t>(pages_.size());
  const int64_t row = index_of(entry) / num_pages;
  return {.layer = static_cast<int32_t>(row / geometry_.num_kv_heads),
          .kv_head = geometry_.first_kv_head + static_cast<int32_t>(row % geometry_.num_kv_heads),
          .page = pages_[static_cast<size_t>(index_of(entry) % num_pages)]};
}

Result<void> PageTable::check_readable(std::span<PageEntry* const> entries) const {
  if (sealed) return {};
  const auto missing = std::find_if(entries.begin(), entries.end(), [](const PageEntry* entry) {
    return entry->state != PageState::kWritten || !entry->scored;
  });
  if (missing == entries.end()) return {};
  const PageKey key = key_of(**missing);
  return error(Errc::kUnavailable,
               "request '{}': layer {} kv head {} page {} is not there yet; {} of {} pages are",
               request_id_, key.layer, key.kv_head, key.page, num_written, num_entries());
}

std::span<float> PageTable::digest_of(const PageEntry& entry) {
  const size_t floats = 3 * static_cast<size_t>(geometry_.head_dim);
  return {digests_.as<float>() + static_cast<size_t>(index_of(entry)) * floats, floats};
}

}  // namespace millrace::kvstore
