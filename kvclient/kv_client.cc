#include "kvclient/kv_client.h"

#include <algorithm>
#include <thread>

#include "common/checksum.h"
#include "common/clock.h"
#include "common/errc_wire.h"
#include "common/units.h"

namespace millrace::decode {

namespace {

// Before a rank is asked again that had no memory to read into: a few replies' time.
constexpr std::chrono::milliseconds kFullPause{20};

int64_t element_bytes(const std::string& dtype) {
  return dtype == "float32" ? 4 : 2;
}

Error reply_error(const protocol::ErrorInfo& info, const std::string& address) {
  return error(errc_from_wire(info.code()), "{}: {}", address, info.message());
}

}  // namespace

KvClient::KvClient(comm::Transport& transport, protocol::Manifest manifest,
                   const KvClientOptions& options)
    : transport_(transport), manifest_(std::move(manifest)), options_(options) {
  MR_CHECK(options.pages_per_request > 0, "{} pages a request", options.pages_per_request);
}

int64_t KvClient::num_pages() const {
  return ceil_div(static_cast<int64_t>(manifest_.num_tokens()), manifest_.layout().page_tokens());
}

int64_t KvClient::page_bytes() const {
  const auto& layout = manifest_.layout();
  return 2 * int64_t{layout.page_tokens()} * layout.head_dim() * element_bytes(layout.dtype());
}

Result<void> KvClient::check_range(int32_t layer, int32_t kv_head, int64_t first_page,
                                   int64_t count) const {
  const auto& layout = manifest_.layout();
  if (layer < 0 || layer >= static_cast<int64_t>(layout.num_layers()) || kv_head < 0 ||
      kv_head >= static_cast<int64_t>(layout.num_kv_heads()) || first_page < 0 || count < 0 ||
      first_page > num_pages() || count > num_pages() - first_page) {
    return error(Errc::kInvalidArgument,
                 "layer {}, kv head {}, pages [{}, {}) are outside the manifest: {} layers, {} kv "
                 "heads, {} pages",
                 layer, kv_head, first_page, first_page + count, layout.num_layers(),
                 layout.num_kv_heads(), num_pages());
  }
  return {};
}

const ShardSpans& KvClient::spans(int32_t kv_head) {
  const auto known = spans_.find(kv_head);
  if (known != spans_.end()) return known->second;
  return spans_.emplace(kv_head, ShardSpans(manifest_, kv_head)).first->second;
}

Result<std::vector<KvClient::Run>> KvClient::runs(int32_t kv_head, int64_t first_page,
                                                  int64_t count) {
  const ShardSpans& spans = this->spans(kv_head);
  const int64_t end_page = first_page + count;
  std::vector<Run> runs;
  for (int64_t page = first_page; page < end_page; page += runs.back().num_pages) {
    const ShardSpan* span = spans.find(page);
    if (span == nullptr) {
      return error(Errc::kInvalidArgument, "no shard of the manifest holds kv head {}, page {}",
                   kv_head, page);
    }
    runs.push_back({.shard = &manifest_.shards(span->shard),
                    .first_page = page,
                    .num_pages = std::min({int64_t{options_.pages_per_request},
                                           span->end_page - page, end_page - page})});
  }
  return runs;
}

// Ranks name the request themselves.
Error KvClient::transport_error(const Error& why) const {
  return error(why.code, "request '{}': {}", manifest_.request_id(), why.message);
}

Result<comm::TransportConnection*> KvClient::connection(const std::string& address,
                                                        Deadline deadline) {
  auto& slot = connections_[address];
  if (slot == nullptr) {
    auto connected = transport_.connect(address, deadline);
    if (!connected.ok()) return transport_error(connected.error());
    slot = std::move(*connected);
  }
  return slot.get();
}

Result<std::vector<PulledPage>> KvClient::fetch(const Run& run, int32_t layer, int32_t kv_head,
                                                bool digests, std::span<std::byte> destination,
                                                Deadline deadline) {
  while (true) {
    auto fetched = fetch_once(run, layer, kv_head, digests, destination, deadline);
    if (fetched.ok() || fetched.error().code != Errc::kExhausted || deadline.left() < kFullPause) {
      return fetched;
    }
    std::this_thread::sleep_for(kFullPause);
  }
}

Result<std::vector<PulledPage>> KvClient::fetch_once(const Run& run, int32_t layer, int32_t kv_head,
                                                     bool digests, std::span<std::byte> destination,
                                                     Deadline deadline) {
  const std::string& address = run.shard->address();
  protocol::PageRequest request;
  request.set_request_id(manifest_.request_id());
  request.set_lease_id(manifest_.lease_id());
  request.set_epoch(manifest_.epoch());
  request.set_layer(static_cast<uint32_t>(layer));
  request.set_kv_head(static_cast<uint32_t>(kv_head));
  request.set_first_page(static_cast<uint64_t>(run.first_page));
  request.set_num_pages(static_cast<uint32_t>(run.num_pages));
  request.set_digests_only(digests);

  MR_ASSIGN_OR_RETURN(auto* connection, this->connection(address, deadline));
  auto called = connection->call(request.SerializeAsString(), destination, deadline);
  if (!called.ok()) {
    connections_.erase(address);
    return transport_error(called.error());
  }
  protocol::PageReply reply;
  if (!reply.ParseFromString(called->header)) {
    return error(Errc::kCorrupt, "{}: reply header of {} bytes is no page reply", address,
                 called->header.size());
  }
  if (reply.has_error()) return reply_error(reply.error(), address);
  if (reply.pages_size() != run.num_pages ||
      called->payload_bytes != static_cast<int64_t>(destination.size())) {
    return error(Errc::kCorrupt, "{}: {} pages in {} bytes, asked for {} in {}", address,
                 reply.pages_size(), called->payload_bytes, run.num_pages, destination.size());
  }
  stats_.bytes += called->payload_bytes;
  stats_.bytes_by_transport[connection->transport_name()] += called->payload_bytes;
  std::vector<PulledPage> pages;
  for (const auto& info : reply.pages()) {
    pages.push_back(
        {.checksum = info.checksum(), .score = info.score(), .tier = tier_from_wire(info.tier())});
  }
  return pages;
}

Result<void> KvClient::fetch_checked(const Run& run, int32_t layer, int32_t kv_head,
                                     std::span<std::byte> destination,
                                     std::vector<PulledPage>& pages, Deadline deadline) {
  const auto bytes = static_cast<size_t>(page_bytes());
  MR_ASSIGN_OR_RETURN(auto fetched, fetch(run, layer, kv_head, false, destination, deadline));
  for (size_t i = 0; i < fetched.size(); ++i) {
    const auto page = destination.subspan(i * bytes, bytes);
    const Run single{run.shard, run.first_page + static_cast<int64_t>(i), 1};
    for (int32_t attempt = 0; checksum(page) != fetched[i].checksum; ++attempt) {
      ++stats_.corrupt_pages;
      if (attempt == options_.max_refetches) {
        return error(Errc::kCorrupt,
                     "layer {}, kv head {}, page {} from {}: checksum {:016x}, expected {:016x}, "
                     "after {} fetches",
                     layer, kv_head, single.first_page, run.shard->address(), checksum(page),
                     fetched[i].checksum, attempt + 1);
      }
      MR_ASSIGN_OR_RETURN(const auto again, fetch(single, layer, kv_head, false, page, deadline));
      fetched[i] = again.front();
    }
    ++stats_.pages;
    ++stats_.pages_by_tier[fetched[i].tier];
  }
  pages.insert(pages.end(), fetched.begin(), fetched.end());
  return {};
}

Result<std::vector<PulledPage>> KvClient::pull(int32_t layer, int32_t kv_head, int64_t first_page,
                                               int64_t count, std::span<std::byte> destination,
                                               Deadline deadline) {
  MR_RETURN_IF_ERROR(check_range(layer, kv_head, first_page, count));
  MR_CHECK(static_cast<int64_t>(destination.size()) == count * page_bytes(),
           "{} bytes for {} pages of {}", destination.size(), count, page_bytes());
  Stopwatch watch;
  std::vector<PulledPage> pages;
  MR_ASSIGN_OR_RETURN(const auto pieces, runs(kv_head, first_page, count));
  for (const auto& run : pieces) {
    const auto at = static_cast<size_t>((run.first_page - first_page) * page_bytes());
    const auto bytes = static_cast<size_t>(run.num_pages * page_bytes());
    MR_RETURN_IF_ERROR(
        fetch_checked(run, layer, kv_head, destination.subspan(at, bytes), pages, deadline));
  }
  stats_.seconds += watch.elapsed_s();
  return pages;
}

Result<std::vector<float>> KvClient::pull_digests(int32_t layer, int32_t kv_head,
                                                  int64_t first_page, int64_t count,
                                                  Deadline deadline) {
  MR_RETURN_IF_ERROR(check_range(layer, kv_head, first_page, count));
  const size_t page_floats = size_t{3} * manifest_.layout().head_dim();
  std::vector<float> digests(static_cast<size_t>(count) * page_floats);
  MR_ASSIGN_OR_RETURN(const auto pieces, runs(kv_head, first_page, count));
  for (const auto& run : pieces) {
    const auto at = static_cast<size_t>(run.first_page - first_page) * page_floats;
    const auto floats = static_cast<size_t>(run.num_pages) * page_floats;
    MR_RETURN_IF_ERROR(fetch(run, layer, kv_head, true,
                             std::as_writable_bytes(std::span(digests).subspan(at, floats)),
                             deadline));
  }
  return digests;
}

}  // namespace millrace::decode
