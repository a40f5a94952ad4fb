#include "worker/kv_server.h"

#include <vector>

#include "protocol/errc.h"
#include "protocol/kv_messages.pb.h"

namespace millrace::worker {

namespace {

// A PageInfo is 16 bytes on the wire; a reply header holds 60 KiB.
constexpr uint32_t kMaxPagesPerRequest = 2048;

comm::TransportReply error_reply(const Error& error) {
  protocol::PageReply reply;
  reply.mutable_error()->set_code(protocol::errc_to_wire(error.code));
  reply.mutable_error()->set_message(error.message);
  return {.header = reply.SerializeAsString()};
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

Result<comm::TransportReply> KvServer::pages(std::string_view request_header) {
  protocol::PageRequest request;
  if (!request.ParseFromArray(request_header.data(), static_cast<int>(request_header.size()))) {
    return error(Errc::kInvalidArgument, "header of {} bytes is no page request",
                 request_header.size());
  }
  if (request.epoch() != epoch_) {
    return error(Errc::kNotFound, "epoch '{}' is over; this group's is '{}'", request.epoch(),
                 epoch_);
  }
  if (request.num_pages() == 0) return error(Errc::kInvalidArgument, "no pages asked for");
  if (request.num_pages() > kMaxPagesPerRequest) {
    return error(Errc::kTooLarge, "{} pages asked for at once, limit {}", request.num_pages(),
                 kMaxPagesPerRequest);
  }
  MR_ASSIGN_OR_RETURN(
      std::shared_ptr<kvstore::PinnedPages> pinned,
      store_.pin_pages(request.request_id(), request.lease_id(),
                       static_cast<int32_t>(request.layer()),
                       static_cast<int32_t>(request.kv_head()),
                       static_cast<int64_t>(request.first_page()), request.num_pages()));
  protocol::PageReply reply;
  comm::TransportReply out;
  int64_t payload_bytes = 0;
  for (const auto& page : pinned->pages()) {
    auto& info = *reply.add_pages();
    info.set_checksum(page.checksum);
    info.set_score(page.score);
    info.set_tier(static_cast<uint32_t>(page.tier));
    out.payload.pieces.push_back(request.digests_only() ? std::as_bytes(page.digest) : page.bytes);
    payload_bytes += static_cast<int64_t>(out.payload.pieces.back().size());
  }
  if (payload_bytes > comm::kMaxTransportPayloadBytes) {
    return error(Errc::kTooLarge, "{} pages are {} bytes, a reply carries {}", request.num_pages(),
                 payload_bytes, comm::kMaxTransportPayloadBytes);
  }
  out.header = reply.SerializeAsString();
  out.payload.keep_alive = std::move(pinned);
  return out;
}

}  // namespace millrace::worker
