#include "worker/store/kv_server.h"

#include <algorithm>
#include <vector>

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

// Numbers beyond int64 become negative ones, which no prompt has.
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
  auto reply = serve(request_header);
  return reply.ok() ? std::move(*reply) : error_reply(reply.error());
}

Result<comm::TransportReply> KvServer::serve(std::string_view request_header) {
  protocol::PageRequest request;
  if (!request.ParseFromArray(request_header.data(), static_cast<int>(request_header.size()))) {
    return error(Errc::kInvalidArgument, "header of {} bytes is not a page request",
                 request_header.size());
  }
  if (request.epoch() != epoch_) {
    return error(Errc::kNotFound, "epoch '{}' has ended; this group's is '{}'", request.epoch(),
                 epoch_);
  }
  return request.has_scores() ? scores(request) : pages(request);
}

// All that can be refused without the store is refused before it: pinning reads what is on disk.
Result<comm::TransportReply> KvServer::pages(const protocol::PageRequest& request) {
  MR_RETURN_IF_ERROR(check_size(request, store_.geometry()));
  MR_ASSIGN_OR_RETURN(std::shared_ptr<kvstore::PinnedPages> pinned, pin(request));
  protocol::PageReply reply;
  comm::TransportReply out;
  for (const auto& page : pinned->pages()) {
    auto& info = *reply.add_pages();
    info.set_checksum(page.checksum);
    info.set_score(page.score);
    info.set_tier(static_cast<uint32_t>(page.tier));
    out.payload.pieces.push_back(request.digests_only() ? std::as_bytes(page.digest) : page.bytes);
  }
  out.header = reply.SerializeAsString();
  out.payload.keep_alive = std::move(pinned);
  return out;
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
  MR_ASSIGN_OR_RETURN(const auto pages, page_numbers(request));
  if (request.digests_only()) {
    return store_.pin_digests(request.request_id(), request.lease_id(), layer, kv_head, pages);
  }
  return store_.pin_pages(request.request_id(), request.lease_id(), layer, kv_head, pages);
}

}  // namespace millrace::worker
