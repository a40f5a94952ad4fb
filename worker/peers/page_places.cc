#include "worker/peers/page_places.h"

namespace millrace::worker {

std::vector<PagePlace> places_of(const kvstore::HeldPrefix& held, const kvstore::KvStore& store) {
  const auto pools = store.shared_pools();
  const auto page_bytes = static_cast<size_t>(store.geometry().page_bytes());
  std::vector<PagePlace> places;
  places.reserve(held.copies().size());
  for (const auto& copy : held.copies()) {
    const auto bytes =
        copy.bytes == nullptr ? std::span<const std::byte>() : std::span(copy.bytes, page_bytes);
    places.emplace_back(place_in(pools, bytes), copy.checksum);
  }
  return places;
}

}  // namespace millrace::worker
