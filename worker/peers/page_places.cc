#include "worker/peers/page_places.h"

namespace millrace::worker {

std::vector<PagePlace> places_of_prefix(const kvstore::KvStore& store,
                                        const std::string& request_id) {
  std::vector<PagePlace> places;
  const auto copies = store.find_prefix(request_id);
  if (!copies.ok()) return places;
  const auto pools = store.shared_pools();
  const auto page_bytes = static_cast<size_t>(store.geometry().page_bytes());
  places.reserve(copies->size());
  for (const auto& copy : *copies) {
    const auto bytes =
        copy.bytes == nullptr ? std::span<const std::byte>() : std::span(copy.bytes, page_bytes);
    places.emplace_back(place_in(pools, bytes), copy.checksum);
  }
  return places;
}

}  // namespace millrace::worker
