#include "worker/store/kv_server.h"

#include <algorithm>

#include "common/errc_wire.h"

namespace millrace::worker {

namespace {

// A PageInfo is 16 bytes on the wire; a reply header holds 60 KiB.
constexpr uint32_t kMaxPagesPerRequest = 2048;

comm::TransportReply error_reply(const Error& error) {
  protocol::PageReply reply;
  reply.mutable_error()->set_code(errc_to_wire(error.code));
  reply.mutable_error()->set_message(error.message);
  return {.header = reply.SerializeAsString()};
}

Result<void> check_size(const protocol::PageRequest& request, const kvstore::KvGeometry& geometry) {
  if (request.num_pages() == 0) return error(Errc::kInvalidArgument, "no pages requested");
  if (request.num_pages() > kMaxPagesPerRequest) {
    return error(Errc::kTooLarge, "{} pages requested at once, limit {}", request.num_pages(),
                 kMaxPagesPerRequest);
  }
  const int64_t payload_bytes =
      request.num_pages() *
      (request.digests_only() ? geometry.digest_bytes() : geometry.page_bytes());
  if (payload_bytes > comm::kMaxTransportPayloadBytes) {
    return error(Errc::kTooLarge, "{} pages have {} bytes, a reply holds at most {}",
                 request.num_pages(), payload_bytes, comm::kMaxTransportPayloadBytes);
  }
  return {};
}

bool all_in_place(const kvstore::PinnedPages& pinned) {
  return std::ranges::none_of(pinned.pages(), [](const auto& page) { return page.bytes.empty(); });
}

comm::TransportReply reply_of(std::shared_ptr<kvstore::PinnedPages> pinned, bool digests_only) {
  protocol::PageReply reply;
  comm::TransportReply out;
  for (const auto& page : pinned->pages()) {
    auto& info = *reply.add_pages();
    info.set_checksum(page.checksum);
    info.set_score(page.score);
    info.set_tier(static_cast<uint32_t>(page.tier));
    out.payload.pieces.push_back(digests_only ? std::as_bytes(page.digest) : page.bytes);
  }
  out.header = reply.SerializeAsString();
  out.payload.keep_alive = std::move(pinned);
  return out;
}

}  // namespace

Result<std::unique_ptr<KvServer>> KvServer::start(comm::Transport& transport,
                                                  kvstore::KvStore& store, std::string epoch,
                                                  const std::string& host, int port) {
  std::unique_ptr<KvServer> server(new KvServer(store, std::move(epoch)));
  auto* self = server.get();
  MR_ASSIGN_OR_RETURN(server->server_,
                      transport.listen(host, port, [self](std::string_view header) {
                        return self->answer(header);
                      }));
  return server;
}

comm::TransportReply KvServer::answer(std::string_view request_header) {
  auto reply = pages(request_header);
  return reply.ok() ? std::move(*reply) : error_reply(reply.error());
}

// Called on the transport's threads: pages that are not in host memory are read on others.
Result<comm::TransportReply> KvServer::pages(std::string_view request_header) {
  protocol::PageRequest request;
  if (!request.ParseFromArray(request_header.data(), static_cast<int>(request_header.size()))) {
    return error(Errc::kInvalidArgument, "header of {} bytes is not a page request",
                 request_header.size());
  }
  if (request.epoch() != epoch_) {
    return error(Errc::kNotFound, "epoch '{}' has ended; this group's is '{}'", request.epoch(),
                 epoch_);
  }
  MR_RETURN_IF_ERROR(check_size(request, store_.geometry()));
  MR_ASSIGN_OR_RETURN(std::shared_ptr<kvstore::PinnedPages> pinned, pin(request));
  const bool digests_only = request.digests_only();
  if (digests_only || all_in_place(*pinned)) return reply_of(std::move(pinned), digests_only);
  return comm::TransportReply{.later = [pinned]() -> comm::TransportReply {
    const auto loaded = pinned->load();
    return loaded.ok() ? reply_of(pinned, /*digests_only=*/false) : error_reply(loaded.error());
  }};
}

Result<std::unique_ptr<kvstore::PinnedPages>> KvServer::pin(const protocol::PageRequest& request) {
  const auto layer = static_cast<int32_t>(request.layer());
  const auto kv_head = static_cast<int32_t>(request.kv_head());
  const auto first_page = static_cast<int64_t>(request.first_page());
  const int64_t num_pages = request.num_pages();
  if (request.digests_only()) {
    return store_.pin_digests(request.request_id(), request.lease_id(), layer, kv_head, first_page,
                              num_pages);
  }
  return store_.pin_in_place(request.request_id(), request.lease_id(), layer, kv_head, first_page,
                             num_pages);
}

}  // namespace millrace::worker
