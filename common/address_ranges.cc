// SPDX-License-Identifier: Apache-2.0
#include "common/address_ranges.h"

#include <iterator>
#include <mutex>

namespace millrace {

void AddressRanges::add(std::span<const std::byte> piece) {
  const std::unique_lock lock(mutex_);
  pieces_.emplace(piece.data(), piece.data() + piece.size());
}

void AddressRanges::remove(std::span<const std::byte> piece) {
  const std::unique_lock lock(mutex_);
  pieces_.erase(piece.data());
}

bool AddressRanges::contain(std::span<const std::byte> bytes) const {
  const std::shared_lock lock(mutex_);
  const std::byte* const end = bytes.data() + bytes.size();
  auto piece = pieces_.upper_bound(bytes.data());
  if (piece == pieces_.begin()) return false;
  --piece;
  while (piece->second < end) {
    const std::byte* const reached = piece->second;
    if (reached <= bytes.data()) return false;
    if (++piece == pieces_.end() || piece->first != reached) return false;
  }
  return true;
}

}  // namespace millrace
