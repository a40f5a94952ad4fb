// SPDX-License-Identifier: Apache-2.0
#include "worker/store/kv_server.h"

#include <algorithm>
#include <vector>

#include "common/log.h"
#include "worker/store/page_reply.h"

namespace millrace::worker {

namespace {

// A PageInfo is 16 bytes on the wire; a reply header holds 60 KiB.
constexpr uint32_t kMaxPagesPerRequest = 2048;

Result<void> check_size(const protocol::PageRequest& request, const kvstore::KvGeometry& geometry) {
  const int64_t num_pages = std::max<int64_t>(request.num_pages(), request.pages_size());
  if (num_pages == 0) return error(Errc::kInvalidArgument, "no pages requested");
  if (num_pages > kMaxPagesPerRequest) {
    return error(Errc::kTooLarge, "{} pages requested at once, limit {}", num_pages,
                 kMaxPagesPerRequest);
  }
  const int64_t payload_bytes =
      num_pages * (request.digests_only() ? geometry.digest_bytes() : geometry.page_bytes());
  if (payload_bytes > comm::kMaxTransportPayloadBytes) {
    return error(Errc::kTooLarge, "{} pages have {} bytes, a reply holds at most {}", num_pages,
                 payload_bytes, comm::kMaxTransportPayloadBytes);
  }
  return {};
}

// Page numbers beyond int64 become negative, which no prompt has.
Result<std::vector<int64_t>> page_numbers(const protocol::PageRequest& request) {
  if (request.pages_size() == 0) {
    return kvstore::consecutive_pages(static_cast<int64_t>(request.first_page()),
                                      request.num_pages());
  }
  if (request.num_pages() != 0 || request.first_page() != 0) {
    return error(Errc::kInvalidArgument, "{} pages are named, and {} from {} too",
                 request.pages_size(), request.num_pages(), request.first_page());
  }
  return std::vector<int64_t>(request.pages().begin(), request.pages().end());
}

bool all_in_place(const kvstore::PinnedPages& pinned) {
  return std::ranges::none_of(pinned.pages(), [](const auto& page) { return page.bytes.empty(); });
}

}  // namespace

Result<std::unique_ptr<KvServer>> KvServer::start(comm::Transport& transport,
                                                  kvstore::LeasedPages& store, std::string epoch,
                                                  const std::string& host, int port) {
  std::unique_ptr<KvServer> server(new KvServer(store, std::move(epoch)));
  auto* self = server.get();
  server->start_places();
  MR_ASSIGN_OR_RETURN(
      server->server_,
      transport.listen(
          host, port, [self](std::string_view header) { return self->answer(header); },
          // Each request is checked again for the pages that it may read.
          [self](std::string_view capability) { return self->store_.knows_lease(capability); }));
  return server;
}

void KvServer::start_places() {
  if (store_.shared_pools().empty() && !store_.shared_device_pool()) return;
  auto started =
      PlaceServer::start(store_, [this](std::string_view header) -> Result<PlaceServer::Asked> {
        MR_ASSIGN_OR_RETURN(const auto request, read_request(header));
        MR_ASSIGN_OR_RETURN(auto pinned, pin(request));
        return PlaceServer::Asked{.pinned = std::move(pinned),
                                  .device_places = request.device_places()};
      });
  if (started.ok()) {
    places_ = std::move(*started);
  } else {
    log::warn("decode nodes on this host pull over the transport: {}", started.error().message);
  }
}

comm::TransportStats KvServer::stats() const {
  comm::TransportStats stats = server_->stats();
  if (!places_) return stats;
  stats.requests += places_->num_requests();
  stats.bytes_sent += places_->bytes_told();
  stats.bytes_sent_over[static_cast<int>(comm::Carrier::kSameHost)] += places_->bytes_told();
  return stats;
}

comm::TransportReply KvServer::answer(std::string_view request_header) {
  auto reply = serve(request_header);
  if (reply.ok()) return std::move(*reply);
  return {.header = error_reply(reply.error()).SerializeAsString()};
}

Result<comm::TransportReply> KvServer::serve(std::string_view request_header) {
  MR_ASSIGN_OR_RETURN(const auto request, read_request(request_header));
  return request.has_scores() ? scores(request) : pages(request);
}

// Called on the transport's threads. Pages that are not in host memory are read on other threads.
Result<comm::TransportReply> KvServer::pages(const protocol::PageRequest& request) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<kvstore::PinnedPages> pinned, pin(request));
  const bool digests_only = request.digests_only();
  if (digests_only || all_in_place(*pinned)) return reply_of(std::move(pinned), digests_only);
  return comm::TransportReply{.later = [this, pinned]() -> comm::TransportReply {
    const auto loaded = pinned->load();
    if (loaded.ok()) return reply_of(pinned, /*digests_only=*/false);
    return {.header = error_reply(loaded.error()).SerializeAsString()};
  }};
}

comm::TransportReply KvServer::reply_of(std::shared_ptr<kvstore::PinnedPages> pinned,
                                        bool digests_only) const {
  protocol::PageReply reply = page_reply(*pinned);
  if (places_) reply.set_same_host_socket(places_->socket());
  comm::TransportReply out{.header = reply.SerializeAsString()};
  for (const auto& page : pinned->pages()) {
    out.payload.pieces.push_back(digests_only ? std::as_bytes(page.digest) : page.bytes);
  }
  out.payload.keep_alive = std::move(pinned);
  return out;
}

Result<protocol::PageRequest> KvServer::read_request(std::string_view header) const {
  protocol::PageRequest request;
  if (!request.ParseFromArray(header.data(), static_cast<int>(header.size()))) {
    return error(Errc::kInvalidArgument, "header of {} bytes is not a page request", header.size());
  }
  if (request.epoch() != epoch_) {
    return error(Errc::kNotFound, "epoch '{}' has ended; this group's is '{}'", request.epoch(),
                 epoch_);
  }
  return request;
}

Result<comm::TransportReply> KvServer::scores(const protocol::PageRequest& request) const {
  MR_ASSIGN_OR_RETURN(
      auto scores,
      store_.scores(request.request_id(), request.lease_id(),
                    {.first_layer = static_cast<int32_t>(request.layer()),
                     .num_layers = static_cast<int32_t>(request.scores().num_layers()),
                     .first_kv_head = static_cast<int32_t>(request.kv_head()),
                     .num_kv_heads = static_cast<int32_t>(request.scores().num_kv_heads())}));
  const auto kept = std::make_shared<std::vector<float>>(std::move(scores));
  const auto bytes = std::as_bytes(std::span(*kept));
  if (std::ssize(bytes) > comm::kMaxTransportPayloadBytes) {
    return error(Errc::kTooLarge, "{} scores have {} bytes, a reply holds at most {}", kept->size(),
                 bytes.size(), comm::kMaxTransportPayloadBytes);
  }
  return comm::TransportReply{.header = protocol::PageReply().SerializeAsString(),
                              .payload = {.pieces = {bytes}, .keep_alive = kept}};
}

Result<std::unique_ptr<kvstore::PinnedPages>> KvServer::pin(const protocol::PageRequest& request) {
  const auto layer = static_cast<int32_t>(request.layer());
  const auto kv_head = static_cast<int32_t>(request.kv_head());
  MR_RETURN_IF_ERROR(check_size(request, store_.geometry()));
  MR_ASSIGN_OR_RETURN(const auto pages, page_numbers(request));
  if (request.digests_only()) {
    return store_.pin_digests(request.request_id(), request.lease_id(), layer, kv_head, pages);
  }
  return store_.pin_in_place(request.request_id(), request.lease_id(), layer, kv_head, pages);
}

}  // namespace millrace::worker
