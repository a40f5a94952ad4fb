// SPDX-License-Identifier: Apache-2.0
// Where a page lies in the pools that other processes of the host can map (LeasedPages::shared_pools).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/system/shared_memory.h"

namespace millrace::worker {

struct PoolPlace {
  uint32_t pool = 0;  // from 1; 0: in none
  uint64_t offset = 0;
};

inline PoolPlace place_in(std::span<const SharedMemory* const> pools,
                          std::span<const std::byte> bytes) {
  for (size_t i = 0; !bytes.empty() && i < pools.size(); ++i) {
    const auto pool = pools[i]->bytes();
    if (bytes.data() < pool.data() || bytes.data() >= pool.data() + pool.size()) continue;
    return {static_cast<uint32_t>(i + 1), static_cast<uint64_t>(bytes.data() - pool.data())};
  }
  return {};
}

}  // namespace millrace::worker
