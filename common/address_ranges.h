// Ranges of addresses, added and taken away piece by piece. Any thread.
#pragma once

#include <cstddef>
#include <map>
#include <shared_mutex>
#include <span>

namespace millrace {

class AddressRanges {
 public:
  // Pieces do not overlap.
  void add(std::span<const std::byte> piece);
  // One that was added.
  void remove(std::span<const std::byte> piece);
  // Whether pieces that are there have every byte of `bytes`, together where they adjoin.
  bool contain(std::span<const std::byte> bytes) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, const std::byte*> pieces_;  // begin -> end
};

}  // namespace millrace
