// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/page_column.h"

#include "common/check.h"

namespace millrace::kvstore {

Tier PageSlots::best() const {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (has(tier)) return tier;
  }
  MR_CHECK(false, "a page without a copy");
}

PageColumn::PageColumn(std::string request_id, const KvGeometry& geometry, int64_t page,
                       int64_t num_prompt_pages, int64_t sequence)
    : retention(sequence),
      request_id_(std::move(request_id)),
      geometry_(geometry),
      page_(page),
      sequence_(sequence),
      entries_(static_cast<size_t>(geometry.num_layers) *
               static_cast<size_t>(geometry.num_kv_heads)),
      digests_(num_entries() * geometry.digest_bytes()) {
  for (PageEntry& entry : entries_) {
    entry.column = this;
    entry.priority.keep = keep_without_score(key_of(entry).layer, page, num_prompt_pages);
  }
}

PageKey PageColumn::key_of(const PageEntry& entry) const {
  const int64_t row = row_of(entry);
  return {.layer = static_cast<int32_t>(row / geometry_.num_kv_heads),
          .kv_head = geometry_.first_kv_head + static_cast<int32_t>(row % geometry_.num_kv_heads),
          .page = page_};
}

std::span<float> PageColumn::digest_of(const PageEntry& entry) {
  const size_t floats = 3 * static_cast<size_t>(geometry_.head_dim);
  return {digests_.as<float>() + static_cast<size_t>(row_of(entry)) * floats, floats};
}

std::span<float> PageColumn::digests() {
  return {digests_.as<float>(), static_cast<size_t>(digests_.bytes()) / sizeof(float)};
}

}  // namespace millrace::kvstore
