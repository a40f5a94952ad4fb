// SPDX-License-Identifier: Apache-2.0
#include "kvstore/held_columns.h"

#include <utility>

namespace millrace::kvstore {

namespace {

std::vector<PageEntry*> entries_of(PageColumn& column) {
  std::vector<PageEntry*> entries;
  entries.reserve(static_cast<size_t>(column.num_entries()));
  for (PageEntry& entry : column.entries()) entries.push_back(&entry);
  return entries;
}

PageCopy copy_of(const PageEntry& entry, const PageIo& io) {
  PageCopy copy{.checksum = entry.checksum};
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    if (copy.bytes != nullptr || !entry.slots.has(tier)) continue;
    copy.bytes = io.address(tier, entry.slots[tier]).data();
  }
  return copy;
}

}  // namespace

HeldColumns::HeldColumns(std::shared_ptr<PageTable> table, const PageIo& io, Residency& residency,
                         std::mutex& mutex)
    : residency_(residency),
      mutex_(mutex),
      table_(std::move(table)),
      columns_(table_->columns().first(table_->columns().size() - table_->own_columns().size())) {
  if (!columns_.empty()) {
    copies_.reserve(columns_.size() * static_cast<size_t>(columns_.front()->num_entries()));
  }
  for (const auto& column : columns_) {
    const std::lock_guard lock(mutex_);
    residency_.pin_for_reader(entries_of(*column));
    for (const PageEntry& entry : column->entries()) copies_.push_back(copy_of(entry, io));
  }
}

HeldColumns::~HeldColumns() {
  for (const auto& column : columns_) {
    const std::lock_guard lock(mutex_);
    residency_.unpin_for_reader(entries_of(*column));
  }
}

}  // namespace millrace::kvstore
