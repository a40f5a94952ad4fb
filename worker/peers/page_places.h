// Where the pages of a prompt's prefix lie that a rank holds, told to the rank that computes the prompt in its lane.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/system/shared_memory.h"
#include "kvstore/kv_store.h"
#include "worker/store/pool_place.h"

namespace millrace::worker {

// One page of a layer and kv head, as it travels.
class PagePlace {
 public:
  PagePlace() = default;
  PagePlace(PoolPlace place, uint64_t checksum)
      : place_(uint64_t{place.pool} << kOffsetBits | place.offset), checksum_(checksum) {}

  // In the rank's shared pools, or in none: on disk, or in a GPU's memory alone.
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

// Of held pages: [pages, layers, kv heads of the store].
std::vector<PagePlace> places_of(const kvstore::HeldPrefix& held, const kvstore::KvStore& store);

}  // namespace millrace::worker
