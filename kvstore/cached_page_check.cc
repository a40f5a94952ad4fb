// SPDX-License-Identifier: Apache-2.0
#include "kvstore/cached_page_check.h"

#include <algorithm>
#include <memory>

#include "common/aligned_buffer.h"
#include "common/checksum.h"
#include "common/log.h"

namespace millrace::kvstore {

std::vector<bool> CachedPageCheck::check(std::span<const PageContentKey> keys, CacheCheck what) {
  std::vector<bool> intact;
  intact.reserve(keys.size());
  for (const auto& key : keys) intact.push_back(is_intact(key, what));
  return intact;
}

// The lock is held for one column at a time, and not while the column is read.
bool CachedPageCheck::is_intact(const PageContentKey& key, CacheCheck what) {
  std::shared_ptr<PageColumn> column;
  std::vector<PageEntry*> entries;
  {
    const std::lock_guard lock(mutex_);
    PageColumn* const found = cache_.find(key);
    if (found == nullptr) return false;
    // If nothing is on disk, the hundreds of entries of a column are not looked through: that took
    // 20 ms for 2,047 columns.
    if (what == CacheCheck::kDisk && residency_.slots_used(Tier::kDisk) == 0) return true;
    const auto on_disk = [](const PageEntry& page) { return page.slots.best() == Tier::kDisk; };
    if (what == CacheCheck::kDisk && std::ranges::none_of(found->entries(), on_disk)) return true;
    column = found->shared_from_this();
    for (PageEntry& page : column->entries()) entries.push_back(&page);
    residency_.pin_for_reader(entries);
  }
  const auto checked = read(*column, what);
  const std::lock_guard lock(mutex_);
  residency_.unpin_for_reader(entries);
  if (checked.ok()) return true;
  log::warn("kvstore: a cached page is forgotten: {}", checked.error().to_string());
  forget(key, *column);
  return false;
}

Result<void> CachedPageCheck::read(PageColumn& column, CacheCheck what) const {
  AlignedBuffer memory;
  const auto page_bytes = static_cast<size_t>(io_.page_bytes());
  for (const PageEntry& page : column.entries()) {
    Tier tier{};
    int32_t slot = 0;
    {
      const std::lock_guard lock(mutex_);
      tier = page.slots.best();
      slot = page.slots[tier];
    }
    if (what == CacheCheck::kDisk && tier != Tier::kDisk) continue;
    if (const auto bytes = io_.address(tier, slot); !bytes.empty()) {
      if (checksum(bytes) == page.checksum) continue;
      const PageKey key = column.key_of(page);
      return error(Errc::kCorrupt,
                   "layer {} kv head {} page {} of request '{}' has not the checksum it was "
                   "written with",
                   key.layer, key.kv_head, key.page, column.request_id());
    }
    if (memory.bytes() == 0) memory = AlignedBuffer(io_.page_bytes());
    const std::span bytes(memory.as<std::byte>(), page_bytes);
    if (tier == Tier::kDisk) meter_.begin();
    const auto done = io_.read(tier, slot, page, bytes);
    if (tier == Tier::kDisk) meter_.end(std::ssize(bytes));
    MR_RETURN_IF_ERROR(done);
  }
  return {};
}

void CachedPageCheck::forget(const PageContentKey& key, PageColumn& column) {
  ++num_damaged_;
  if (cache_.find(key) != &column) return;
  residency_.count_cached(column, -1);
  cache_.remove(column);
  if (column.num_requests == 0) residency_.free(column);
}

}  // namespace millrace::kvstore
