// SPDX-License-Identifier: Apache-2.0
#include "worker/peers/page_places.h"

namespace millrace::worker {

void add_places(const kvstore::HeldPrefix& held, const kvstore::LeasedPages& store,
                std::vector<PagePlace>& places) {
  const auto pools = store.shared_pools();
  const auto page_bytes = static_cast<size_t>(store.geometry().page_bytes());
  for (const auto& copy : held.copies()) {
    const auto bytes =
        copy.bytes == nullptr ? std::span<const std::byte>() : std::span(copy.bytes, page_bytes);
    places.emplace_back(place_in(pools, bytes), copy.checksum);
  }
}

}  // namespace millrace::worker
