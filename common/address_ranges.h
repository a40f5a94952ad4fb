// SPDX-License-Identifier: Apache-2.0
// A set of address ranges, to which pieces are added and removed. Any thread.
#pragma once

#include <cstddef>
#include <map>
#include <shared_mutex>
#include <span>

namespace millrace {

class AddressRanges {
 public:
  // Pieces must not overlap.
  void add(std::span<const std::byte> piece);
  // `piece` must have been added.
  void remove(std::span<const std::byte> piece);
  // Whether the pieces in the set cover every byte of `bytes`; adjoining pieces count together.
  bool contain(std::span<const std::byte> bytes) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, const std::byte*> pieces_;  // begin -> end
};

}  // namespace millrace
