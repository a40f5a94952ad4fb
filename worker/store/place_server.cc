#include "worker/store/place_server.h"

#include "protocol/place_messages.pb.h"
#include "worker/store/page_reply.h"

namespace millrace::worker {

namespace {

struct Place {
  uint32_t pool = 0;  // 0: none
  uint64_t offset = 0;
};

Place place_of(std::span<const std::byte> bytes, std::span<const SharedMemory* const> pools) {
  for (size_t i = 0; !bytes.empty() && i < pools.size(); ++i) {
    const auto pool = pools[i]->bytes();
    if (bytes.data() < pool.data() || bytes.data() >= pool.data() + pool.size()) continue;
    return {static_cast<uint32_t>(i + 1), static_cast<uint64_t>(bytes.data() - pool.data())};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<PlaceServer>> PlaceServer::start(const kvstore::KvStore& store, Pin pin,
                                                        const comm::MemfdServerOptions& options) {
  std::unique_ptr<PlaceServer> server(new PlaceServer(store.shared_pools(), std::move(pin)));
  std::vector<int> descriptors;
  for (const SharedMemory* pool : server->pools_) descriptors.push_back(pool->descriptor());
  MR_ASSIGN_OR_RETURN(server->server_, comm::MemfdServer::start(
                                           std::move(descriptors),
                                           [self = server.get()](std::string_view request) {
                                             return self->answer(request);
                                           },
                                           options));
  return server;
}

comm::MemfdServer::Answer PlaceServer::answer(std::string_view request) {
  ++num_requests_;
  protocol::PlaceReply reply;
  auto pinned = pin_(request);
  if (!pinned.ok()) {
    *reply.mutable_reply() = error_reply(pinned.error());
    return {.text = reply.SerializeAsString(), .granted = false, .keep_alive = {}};
  }
  *reply.mutable_reply() = page_reply(**pinned);
  int64_t bytes = 0;
  for (const auto& page : (*pinned)->pages()) {
    const auto lies = page.bytes.empty() ? page.loose_bytes : page.bytes;
    const Place place = place_of(lies, pools_);
    reply.add_pools(place.pool);
    reply.add_offsets(place.offset);
    if (place.pool > 0) bytes += std::ssize(lies);
  }
  bytes_told_ += bytes;
  return {.text = reply.SerializeAsString(), .granted = true, .keep_alive = std::move(*pinned)};
}

}  // namespace millrace::worker
