#include "kvstore/pins.h"

namespace millrace::kvstore {

void Pins::describe() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const PageEntry& entry = entries_[i];
    const Tier tier = entry.slots.best();
    slots_.push_back(entry.slots[tier]);
    pages_[i] = {.bytes = {},
                 .digest = table_->digest_of(entry),
                 .checksum = entry.checksum,
                 .score = entry.score,
                 .tier = tier};
  }
}

Result<void> Pins::load(const PageIo& io) {
  std::vector<size_t> to_read;
  for (size_t i = 0; i < pages_.size(); ++i) {
    pages_[i].bytes = io.address(pages_[i].tier, slots_[i]);
    if (pages_[i].bytes.empty()) to_read.push_back(i);
  }
  const auto page_bytes = static_cast<size_t>(io.page_bytes());
  read_ = AlignedBuffer(static_cast<int64_t>(to_read.size() * page_bytes));
  std::byte* next = read_.as<std::byte>();
  for (const size_t i : to_read) {
    const std::span bytes(next, page_bytes);
    MR_RETURN_IF_ERROR(io.read(pages_[i].tier, slots_[i], entries_[i], bytes));
    pages_[i].bytes = bytes;
    next += page_bytes;
  }
  return {};
}

}  // namespace millrace::kvstore
