// SPDX-License-Identifier: Apache-2.0
#include "worker/store/place_server.h"

#include "worker/store/page_reply.h"
#include "worker/store/pool_place.h"

namespace millrace::worker {

Result<std::unique_ptr<PlaceServer>> PlaceServer::start(const kvstore::LeasedPages& store, Pin pin,
                                                        const comm::MemfdServerOptions& options) {
  std::unique_ptr<PlaceServer> server(new PlaceServer(store, std::move(pin)));
  std::vector<int> descriptors;
  for (const SharedMemory* pool : server->pools_) descriptors.push_back(pool->descriptor());
  if (server->device_pool_) descriptors.push_back(server->device_pool_->descriptor);
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
  auto asked = pin_(request);
  if (!asked.ok()) {
    protocol::PlaceReply refusal;
    *refusal.mutable_reply() = error_reply(asked.error());
    return {.text = refusal.SerializeAsString(), .num_descriptors = 0, .keep_alive = {}};
  }
  const bool device_places = asked->device_places && device_pool_;
  const auto reply = places(*asked->pinned, device_places);
  return {.text = reply.SerializeAsString(),
          .num_descriptors = pools_.size() + (device_places ? 1 : 0),
          .keep_alive = std::move(asked->pinned)};
}

protocol::PlaceReply PlaceServer::places(kvstore::PinnedPages& pinned, bool device_places) {
  protocol::PlaceReply reply;
  *reply.mutable_reply() = page_reply(pinned);
  if (device_places) reply.set_device_pool_bytes(static_cast<uint64_t>(device_pool_->bytes));
  int64_t pages_told = 0;
  std::vector<size_t> copied;  // by the client: pages without bytes here
  for (size_t i = 0; i < pinned.pages().size(); ++i) {
    const auto& page = pinned.pages()[i];
    const PoolPlace place = place_in(pools_, page.bytes.empty() ? page.loose_bytes : page.bytes);
    reply.add_pools(place.pool);
    reply.add_offsets(place.offset);
    if (device_places) reply.add_device_offsets(static_cast<uint64_t>(page.device_offset + 1));
    if (place.pool == 0 && !(device_places && page.device_offset >= 0)) continue;
    ++pages_told;
    if (page.bytes.empty()) copied.push_back(i);
  }
  pinned.count_copied(copied);
  bytes_told_ += pages_told * page_bytes_;
  return reply;
}

}  // namespace millrace::worker
