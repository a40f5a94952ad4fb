#include "kvstore/pins.h"

namespace millrace::kvstore {

void Pins::describe() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const PageEntry& entry = *entries_[i];
    const Tier tier = entry.slots.best();
    slots_.push_back(entry.slots[tier]);
    pages_[i] = {.bytes = {},
                 .digest = table_->digest_of(entry),
                 .checksum = entry.checksum,
                 .score = entry.score,
                 .tier = tier};
  }
}

void Pins::take_copies(ReadAhead& read_ahead) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (pages_[i].tier != Tier::kDisk) continue;
    auto copy = read_ahead.take(*entries_[i]);
    if (!copy) continue;
    copies_.push_back(std::move(*copy));
    pages_[i].bytes = {copies_.back().data(), page_bytes_};
    pages_[i].tier = Tier::kHost;
  }
}

Result<void> Pins::load(const PageIo& io, ReadBudget& budget) {
  std::vector<size_t> to_read;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].bytes.empty()) continue;
    pages_[i].bytes = io.address(pages_[i].tier, slots_[i]);
    if (pages_[i].bytes.empty()) to_read.push_back(i);
  }
  const auto page_bytes = static_cast<size_t>(io.page_bytes());
  MR_ASSIGN_OR_RETURN(read_, budget.take(static_cast<int64_t>(to_read.size() * page_bytes)));
  std::byte* next = read_.data();
  for (const size_t i : to_read) {
    const std::span bytes(next, page_bytes);
    MR_RETURN_IF_ERROR(io.read(pages_[i].tier, slots_[i], *entries_[i], bytes));
    pages_[i].bytes = bytes;
    next += page_bytes;
  }
  return {};
}

}  // namespace millrace::kvstore
