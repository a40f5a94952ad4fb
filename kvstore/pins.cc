// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pins.h"

namespace millrace::kvstore {

void Pins::describe() {
  const bool device_is_shared = source_.io.shared_device().has_value();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const PageEntry& entry = *entries_[i];
    const Tier tier = entry.slots.best();
    slots_.push_back(entry.slots[tier]);
    pages_[i] = {.bytes = source_.io.address(tier, entry.slots[tier]),
                 .loose_bytes = {},
                 .device_bytes = source_.io.device_address(tier, entry.slots[tier]),
                 .digest = entry.column->digest_of(entry),
                 .checksum = entry.checksum,
                 .score = table_->score_of(entry),
                 .tier = tier};
    if (tier == Tier::kDevice && device_is_shared) {
      pages_[i].device_offset = entry.slots[tier] * source_.io.page_bytes();
    }
    if (pages_[i].bytes.empty() && entry.slots.has(Tier::kHost)) {
      pages_[i].loose_bytes = source_.io.address(Tier::kHost, entry.slots[Tier::kHost]);
    }
  }
}

bool Pins::take_copy(size_t page) {
  if (pages_[page].tier != Tier::kDisk) return false;
  auto copy = source_.read_ahead(*entries_[page]);
  if (!copy) return false;
  copies_.push_back(std::move(*copy));
  pages_[page].bytes = {copies_.back().data(), static_cast<size_t>(source_.io.page_bytes())};
  pages_[page].tier = Tier::kHost;
  return true;
}

Result<void> Pins::load() {
  std::vector<size_t> missing, to_read;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].bytes.empty()) continue;
    missing.push_back(i);
    if (!take_copy(i)) to_read.push_back(i);
  }
  const auto page_bytes = static_cast<size_t>(source_.io.page_bytes());
  MR_ASSIGN_OR_RETURN(read_,
                      source_.budget.take(static_cast<int64_t>(to_read.size() * page_bytes)));
  std::byte* next = read_.data();
  for (const size_t i : to_read) {
    const std::span bytes(next, page_bytes);
    MR_RETURN_IF_ERROR(source_.io.read(pages_[i].tier, slots_[i], *entries_[i], bytes));
    pages_[i].bytes = bytes;
    next += page_bytes;
  }
  count_copied(missing);
  return {};
}

void Pins::count_copied(std::span<const size_t> pages) {
  std::vector<PageEntry*> entries;
  std::vector<PinnedPage> found;
  for (const size_t i : pages) {
    entries.push_back(entries_[i]);
    found.push_back(pages_[i]);
  }
  source_.count(entries, found);
}

void Pins::count_in_place() {
  std::vector<size_t> there;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].bytes.empty()) there.push_back(i);
  }
  count_copied(there);
}

}  // namespace millrace::kvstore
