// Host memory of others that is page-locked while the GPU's own kernels read it.
#pragma once

#include <cstddef>
#include <span>

#include "common/address_ranges.h"
#include "common/result.h"

namespace millrace::kernels::cuda {

// Any thread, on which the GPU is current.
class LockedMemory {
 public:
  // Whole pages of the system, resident or not. kExhausted: the system or the driver locks no more;
  // kUnsupported: the GPU would see it under other addresses.
  Result<void> lock(std::span<const std::byte> memory);
  // What was locked; nothing reads it any more.
  void unlock(std::span<const std::byte> memory) noexcept;
  bool contains(std::span<const std::byte> bytes) const { return ranges_.contain(bytes); }

 private:
  AddressRanges ranges_;
};

}  // namespace millrace::kernels::cuda
