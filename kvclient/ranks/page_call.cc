// SPDX-License-Identifier: Apache-2.0
#include "kvclient/ranks/page_call.h"

#include <algorithm>
#include <cmath>

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

protocol::PageRequest request_from(const Manifest& manifest, int32_t layer, int32_t kv_head) {
  protocol::PageRequest request;
  request.set_request_id(manifest.request_id);
  request.set_lease_id(manifest.lease_id);
  request.set_epoch(manifest.epoch);
  request.set_layer(static_cast<uint32_t>(layer));
  request.set_kv_head(static_cast<uint32_t>(kv_head));
  return request;
}

// Reads the reply, unless it is a refusal.
Result<protocol::PageReply> parse_reply(const std::string& header, const std::string& address) {
  protocol::PageReply reply;
  if (!reply.ParseFromString(header)) {
    return error(Errc::kCorrupt, "{}: reply header of {} bytes is not a page reply", address,
                 header.size());
  }
  MR_RETURN_IF_ERROR(check_granted(reply, address));
  return reply;
}

}  // namespace

namespace {

protocol::PageRequest request_for(const Manifest& manifest, const PageRun& run) {
  auto request = request_from(manifest, run.layer, run.kv_head);
  if (run.named.empty()) {
    request.set_first_page(static_cast<uint64_t>(run.first_page));
    request.set_num_pages(static_cast<uint32_t>(run.num_pages));
  }
  for (const int64_t page : run.named) request.add_pages(static_cast<uint64_t>(page));
  return request;
}

}  // namespace

std::string page_request(const Manifest& manifest, const PageRun& run, bool digests) {
  auto request = request_for(manifest, run);
  request.set_digests_only(digests);
  return request.SerializeAsString();
}

std::string place_request(const Manifest& manifest, const PageRun& run, bool device_places) {
  auto request = request_for(manifest, run);
  request.set_device_places(device_places);
  return request.SerializeAsString();
}

std::string score_request(const Manifest& manifest, const ScoreBlock& heads) {
  auto request = request_from(manifest, heads.first_layer, heads.first_kv_head);
  request.mutable_scores()->set_num_layers(static_cast<uint32_t>(heads.num_layers));
  request.mutable_scores()->set_num_kv_heads(static_cast<uint32_t>(heads.num_kv_heads));
  return request.SerializeAsString();
}

Result<void> check_score_reply(const comm::TransportConnection::Reply& reply,
                               const std::string& address, std::span<const float> scores) {
  MR_RETURN_IF_ERROR(parse_reply(reply.header, address));
  const auto bytes = static_cast<int64_t>(scores.size_bytes());
  if (reply.payload_bytes != bytes) {
    return error(Errc::kCorrupt, "{}: got scores of {} bytes, requested {}", address,
                 reply.payload_bytes, bytes);
  }
  const auto wrong = std::find_if(scores.begin(), scores.end(),
                                  [](float score) { return !std::isfinite(score) || score < 0; });
  if (wrong == scores.end()) return {};
  return error(Errc::kCorrupt, "{}: score {} of {} is {}", address, wrong - scores.begin(),
               scores.size(), *wrong);
}

Error of_connection(const Manifest& manifest, const Error& why) {
  if (why.code != Errc::kNotFound) return why;
  return Error(why.code, fmt::format("{}; the manifest is of the group with epoch '{}'",
                                     why.message, manifest.epoch));
}

Error of_request(const Manifest& manifest, const Error& why) {
  return error(why.code, "request '{}': {}", manifest.request_id, why.message);
}

Result<PageAnswer> read_page_reply(const comm::TransportConnection::Reply& called,
                                   const std::string& address, const PageRun& run,
                                   int64_t destination_bytes) {
  MR_ASSIGN_OR_RETURN(const auto reply, parse_reply(called.header, address));
  if (reply.pages_size() != run.num_pages || called.payload_bytes != destination_bytes) {
    return error(Errc::kCorrupt, "{}: got {} pages in {} bytes, requested {} in {}", address,
                 reply.pages_size(), called.payload_bytes, run.num_pages, destination_bytes);
  }
  PageAnswer answer{.pages = {}, .same_host_socket = reply.same_host_socket()};
  answer.pages.reserve(static_cast<size_t>(reply.pages_size()));
  for (const auto& info : reply.pages()) answer.pages.push_back(pulled_page(info));
  return answer;
}

Result<PlaceAnswer> read_place_reply(const std::string& text, const std::string& address,
                                     const PageRun& run) {
  protocol::PlaceReply reply;
  if (!reply.ParseFromString(text)) {
    return error(Errc::kCorrupt, "{}: answer of {} bytes is not a place reply", address,
                 text.size());
  }
  MR_RETURN_IF_ERROR(check_granted(reply.reply(), address));
  const int64_t count = reply.reply().pages_size();
  const int64_t on_device = reply.device_offsets_size();
  if (count != run.num_pages || reply.pools_size() != count || reply.offsets_size() != count ||
      (on_device != 0 && on_device != count)) {
    return error(Errc::kCorrupt,
                 "{}: got {} pages, {} pools, {} offsets and {} of a device, requested {}", address,
                 count, reply.pools_size(), reply.offsets_size(), on_device, run.num_pages);
  }
  PlaceAnswer answer{.pages = {},
                     .device_pool_bytes = static_cast<int64_t>(reply.device_pool_bytes())};
  answer.pages.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    // Unsigned, so that an invalid offset from the rank is not taken for a place.
    const uint64_t on = on_device == 0 ? 0 : reply.device_offsets(i);
    answer.pages.push_back({.page = pulled_page(reply.reply().pages(i)),
                            .pool = reply.pools(i),
                            .offset = reply.offsets(i),
                            .device_offset = static_cast<int64_t>(on - 1)});
  }
  return answer;
}

}  // namespace millrace::kvclient
