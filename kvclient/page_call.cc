#include "kvclient/page_call.h"

#include "common/errc_wire.h"
#include "protocol/kv_messages.pb.h"
#include "protocol/place_messages.pb.h"

namespace millrace::kvclient {

namespace {

Result<void> check_granted(const protocol::PageReply& reply, const std::string& address) {
  if (!reply.has_error()) return {};
  return error(errc_from_wire(static_cast<int>(reply.error().code())), "{}: {}", address,
               reply.error().message());
}

PulledPage pulled_page(const protocol::PageInfo& info) {
  return {.checksum = info.checksum(), .score = info.score(), .tier = tier_from_wire(info.tier())};
}

}  // namespace

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

Result<PageAnswer> read_page_reply(const comm::TransportConnection::Reply& called,
                                   const std::string& address, const PageRun& run,
                                   int64_t destination_bytes) {
  protocol::PageReply reply;
  if (!reply.ParseFromString(called.header)) {
    return error(Errc::kCorrupt, "{}: reply header of {} bytes is not a page reply", address,
                 called.header.size());
  }
  MR_RETURN_IF_ERROR(check_granted(reply, address));
  if (reply.pages_size() != run.num_pages || called.payload_bytes != destination_bytes) {
    return error(Errc::kCorrupt, "{}: got {} pages in {} bytes, requested {} in {}", address,
                 reply.pages_size(), called.payload_bytes, run.num_pages, destination_bytes);
  }
  PageAnswer answer{.pages = {}, .same_host_socket = reply.same_host_socket()};
  answer.pages.reserve(static_cast<size_t>(reply.pages_size()));
  for (const auto& info : reply.pages()) answer.pages.push_back(pulled_page(info));
  return answer;
}

Result<std::vector<PlacedPage>> read_place_reply(const std::string& text,
                                                 const std::string& address, const PageRun& run) {
  protocol::PlaceReply reply;
  if (!reply.ParseFromString(text)) {
    return error(Errc::kCorrupt, "{}: answer of {} bytes is not a place reply", address,
                 text.size());
  }
  MR_RETURN_IF_ERROR(check_granted(reply.reply(), address));
  const int64_t count = reply.reply().pages_size();
  if (count != run.num_pages || reply.pools_size() != count || reply.offsets_size() != count) {
    return error(Errc::kCorrupt, "{}: got {} pages, {} pools and {} offsets, requested {}", address,
                 count, reply.pools_size(), reply.offsets_size(), run.num_pages);
  }
  std::vector<PlacedPage> pages;
  pages.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    pages.push_back({.page = pulled_page(reply.reply().pages(i)),
                     .pool = reply.pools(i),
                     .offset = reply.offsets(i)});
  }
  return pages;
}

}  // namespace millrace::kvclient
