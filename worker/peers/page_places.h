// SPDX-License-Identifier: Apache-2.0
// Where a rank's pages of a prompt's prefix lie, as it tells the rank that computes the prompt in
// its lane.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/system/shared_memory.h"
#include "kvstore/leased_pages.h"
#include "worker/store/pool_place.h"

namespace millrace::worker {

// The place and checksum of one page of a layer and kv head, in the form in which ranks exchange
// it.
class PagePlace {
 public:
  PagePlace() = default;
  PagePlace(PoolPlace place, uint64_t checksum)
      : place_(uint64_t{place.pool} << kOffsetBits | place.offset), checksum_(checksum) {}

  // In the rank's shared pools; or in none, if the page is on disk or in a GPU's memory alone.
  PoolPlace place() const {
    return {.pool = static_cast<uint32_t>(place_ >> kOffsetBits),
            .offset = place_ & ((uint64_t{1} << kOffsetBits) - 1)};
  }
  uint64_t checksum() const { return checksum_; }

 private:
  static constexpr int kOffsetBits = 56;

  uint64_t place_ = 0;
  uint64_t checksum_ = 0;
};

// Adds the places of held pages to `places`: [pages, layers, kv heads of the store].
void add_places(const kvstore::HeldPrefix& held, const kvstore::LeasedPages& store,
                std::vector<PagePlace>& places);

}  // namespace millrace::worker
