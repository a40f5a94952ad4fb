#include "kvclient/page_call.h"

#include "common/errc_wire.h"
#include "protocol/kv_messages.pb.h"

namespace millrace::kvclient {

std::string page_request(const Manifest& manifest, const PageRun& run, bool digests) {
  protocol::PageRequest request;
  request.set_request_id(manifest.request_id);
  request.set_lease_id(manifest.lease_id);
  request.set_epoch(manifest.epoch);
  request.set_layer(static_cast<uint32_t>(run.layer));
  request.set_kv_head(static_cast<uint32_t>(run.kv_head));
  request.set_first_page(static_cast<uint64_t>(run.first_page));
  request.set_num_pages(static_cast<uint32_t>(run.num_pages));
  request.set_digests_only(digests);
  return request.SerializeAsString();
}

Error of_request(const Manifest& manifest, const Error& why) {
  return error(why.code, "request '{}': {}", manifest.request_id, why.message);
}

Result<std::vector<PulledPage>> read_page_reply(const comm::TransportConnection::Reply& called,
                                                const std::string& address, const PageRun& run,
                                                int64_t destination_bytes) {
  protocol::PageReply reply;
  if (!reply.ParseFromString(called.header)) {
    return error(Errc::kCorrupt, "{}: reply header of {} bytes is not a page reply", address,
                 called.header.size());
  }
  if (reply.has_error()) {
    return error(errc_from_wire(static_cast<int>(reply.error().code())), "{}: {}", address,
                 reply.error().message());
  }
  if (reply.pages_size() != run.num_pages || called.payload_bytes != destination_bytes) {
    return error(Errc::kCorrupt, "{}: got {} pages in {} bytes, requested {} in {}", address,
                 reply.pages_size(), called.payload_bytes, run.num_pages, destination_bytes);
  }
  std::vector<PulledPage> pages;
  pages.reserve(static_cast<size_t>(reply.pages_size()));
  for (const auto& info : reply.pages()) {
    pages.push_back(
        {.checksum = info.checksum(), .score = info.score(), .tier = tier_from_wire(info.tier())});
  }
  return pages;
}

}  // namespace millrace::kvclient
