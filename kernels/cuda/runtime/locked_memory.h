// SPDX-License-Identifier: Apache-2.0
// Page-locks host memory that somebody else owns, so that the GPU's kernels can read it.
#pragma once

#include <cstddef>
#include <span>

#include "common/address_ranges.h"
#include "common/result.h"

namespace millrace::kernels::cuda {

// May be used by any thread on which the GPU is current.
class LockedMemory {
 public:
  // Whole pages of the system, resident or not. kExhausted: the system or the driver locks no more;
  // kUnsupported: the GPU would see the memory at other addresses.
  Result<void> lock(std::span<const std::byte> memory);
  // `memory` as it was locked; the GPU must no longer read it.
  void unlock(std::span<const std::byte> memory) noexcept;
  bool contains(std::span<const std::byte> bytes) const { return ranges_.contain(bytes); }

 private:
  AddressRanges ranges_;
};

}  // namespace millrace::kernels::cuda
