// SPDX-License-Identifier: Apache-2.0
#include "kvclient/kv_client.h"

#include <algorithm>
#include <thread>

#include "common/checksum.h"
#include "common/clock.h"
#include "kvclient/ranks/page_call.h"

namespace millrace::kvclient {

namespace {

// Pause before a rank that had no memory to read into is asked again: the time of a few replies.
constexpr std::chrono::milliseconds kFullPause{20};

}  // namespace

KvClient::KvClient(comm::Transport& transport, Manifest manifest, const KvClientOptions& options)
    : transport_(transport), manifest_(std::move(manifest)), options_(options) {
  MR_CHECK(options.pages_per_request > 0, "{} pages a request", options.pages_per_request);
}

int64_t KvClient::num_pages() const {
  return manifest_.num_pages();
}

int64_t KvClient::page_bytes() const {
  return manifest_.page_bytes();
}

Result<void> KvClient::check_range(int32_t layer, int32_t kv_head, int64_t first_page,
                                   int64_t count) const {
  const auto& layout = manifest_.layout;
  if (layer < 0 || layer >= layout.num_layers || kv_head < 0 || kv_head >= layout.num_kv_heads ||
      first_page < 0 || count < 0 || first_page > num_pages() || count > num_pages() - first_page) {
    return error(Errc::kInvalidArgument,
                 "layer {}, kv head {}, pages [{}, {}) are outside the manifest: {} layers, {} kv "
                 "heads, {} pages",
                 layer, kv_head, first_page, first_page + count, layout.num_layers,
                 layout.num_kv_heads, num_pages());
  }
  return {};
}

Result<void> KvClient::check_kept(int32_t layer, int32_t kv_head, int64_t first_page,
                                  int64_t count) const {
  for (int64_t page = first_page; page < first_page + count; ++page) {
    if (manifest_.has_page(layer, kv_head, page)) continue;
    return error(Errc::kNotFound, "request '{}': layer {}, kv head {}, page {} was dropped",
                 manifest_.request_id, layer, kv_head, page);
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
    runs.push_back({.shard = &manifest_.shards[static_cast<size_t>(span->shard)],
                    .first_page = page,
                    .num_pages = std::min({int64_t{options_.pages_per_request},
                                           span->end_page - page, end_page - page}),
                    .named = {}});
  }
  return runs;
}

Result<comm::TransportConnection*> KvClient::connection(const std::string& address,
                                                        Deadline deadline) {
  auto& slot = connections_[address];
  if (slot == nullptr) {
    auto connected = transport_.connect(address, manifest_.lease_id, deadline);
    if (!connected.ok()) {
      return of_request(manifest_, of_connection(manifest_, connected.error()));
    }
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
  const std::string& address = run.shard->address;
  MR_ASSIGN_OR_RETURN(auto* connection, this->connection(address, deadline));
  const PageRun pages{.layer = layer,
                      .kv_head = kv_head,
                      .first_page = run.first_page,
                      .num_pages = run.num_pages,
                      .named = run.named};
  const auto called =
      connection->call(page_request(manifest_, pages, digests), destination, deadline);
  if (!called.ok()) {
    connections_.erase(address);
    return of_request(manifest_, called.error());
  }
  const auto bytes = static_cast<int64_t>(destination.size());
  MR_ASSIGN_OR_RETURN(auto answer, read_page_reply(*called, address, pages, bytes));
  stats_.bytes += bytes;
  stats_.bytes_by_transport[connection->transport_name()] += bytes;
  return std::move(answer.pages);
}

Result<void> KvClient::fetch_checked(const Run& run, int32_t layer, int32_t kv_head,
                                     std::span<std::byte> destination,
                                     std::vector<PulledPage>& pages, Deadline deadline) {
  const auto bytes = static_cast<size_t>(page_bytes());
  MR_ASSIGN_OR_RETURN(auto fetched, fetch(run, layer, kv_head, false, destination, deadline));
  for (size_t i = 0; i < fetched.size(); ++i) {
    const auto page = destination.subspan(i * bytes, bytes);
    const Run single{run.shard, run.first_page + static_cast<int64_t>(i), 1, {}};
    for (int32_t attempt = 0; checksum(page) != fetched[i].checksum; ++attempt) {
      ++stats_.corrupt_pages;
      if (attempt == options_.max_refetches) {
        return error(Errc::kCorrupt,
                     "layer {}, kv head {}, page {} from {}: checksum {:016x}, expected {:016x}, "
                     "after {} fetches",
                     layer, kv_head, single.first_page, run.shard->address, checksum(page),
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
  MR_RETURN_IF_ERROR(check_kept(layer, kv_head, first_page, count));
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
  const size_t page_floats = size_t{3} * static_cast<size_t>(manifest_.layout.head_dim);
  std::vector<float> digests(static_cast<size_t>(count) * page_floats);
  // Grouped by rank, because each rank has many stripes.
  std::map<int, std::vector<int64_t>> pages_of_shard;
  const ShardSpans& spans = this->spans(kv_head);
  for (int64_t page = first_page; page < first_page + count; ++page) {
    if (!manifest_.has_page(layer, kv_head, page)) continue;
    const ShardSpan* span = spans.find(page);
    if (span == nullptr) {
      return error(Errc::kInvalidArgument, "no shard of the manifest holds kv head {}, page {}",
                   kv_head, page);
    }
    pages_of_shard[span->shard].push_back(page);
  }
  const auto batch = static_cast<size_t>(options_.pages_per_request);
  std::vector<float> brought;
  for (const auto& [shard, pages] : pages_of_shard) {
    for (size_t first = 0; first < pages.size(); first += batch) {
      const auto names = std::span(pages).subspan(first, std::min(batch, pages.size() - first));
      brought.resize(names.size() * page_floats);
      const Run run{.shard = &manifest_.shards[static_cast<size_t>(shard)],
                    .first_page = names.front(),
                    .num_pages = std::ssize(names),
                    .named = {names.begin(), names.end()}};
      MR_RETURN_IF_ERROR(
          fetch(run, layer, kv_head, true, std::as_writable_bytes(std::span(brought)), deadline));
      for (size_t i = 0; i < names.size(); ++i) {
        std::copy_n(brought.data() + i * page_floats, page_floats,
                    digests.data() + static_cast<size_t>(names[i] - first_page) * page_floats);
      }
    }
  }
  return digests;
}

Result<std::vector<float>> KvClient::pull_scores(int32_t first_layer, int32_t num_layers,
                                                 int32_t first_kv_head, int32_t num_kv_heads,
                                                 Deadline deadline) {
  if (num_layers <= 0 || num_kv_heads <= 0) {
    return error(Errc::kInvalidArgument, "scores of {} layers, {} kv heads", num_layers,
                 num_kv_heads);
  }
  for (const auto& [layer, head] : {std::pair(int64_t{first_layer}, int64_t{first_kv_head}),
                                    std::pair(int64_t{first_layer} + num_layers - 1,
                                              int64_t{first_kv_head} + num_kv_heads - 1)}) {
    MR_RETURN_IF_ERROR(check_range(static_cast<int32_t>(layer), static_cast<int32_t>(head), 0, 0));
  }
  const PullPart part{.first_layer = first_layer,
                      .num_layers = num_layers,
                      .first_kv_head = first_kv_head,
                      .num_kv_heads = num_kv_heads,
                      .num_tokens = manifest_.num_tokens};
  std::vector<float> scores(static_cast<size_t>(num_layers) * static_cast<size_t>(num_kv_heads) *
                            static_cast<size_t>(num_pages()));
  for (const PullLane& lane : pull_lanes(part, manifest_)) {
    MR_RETURN_IF_ERROR(add_scores(lane, part, scores, deadline));
  }
  return scores;
}

// One layer at a time, because a layer fits a reply at any prompt length.
Result<void> KvClient::add_scores(const PullLane& lane, const PullPart& part,
                                  std::vector<float>& scores, Deadline deadline) {
  const auto& shard = manifest_.shards[static_cast<size_t>(lane.shard)];
  const auto held = pages_of(shard, manifest_.layout.page_tokens);
  ScoreBlock heads{.num_layers = 1,
                   .first_kv_head = lane.spans.front().kv_head,
                   .num_kv_heads = lane.spans.back().kv_head - lane.spans.front().kv_head + 1,
                   .num_pages = std::ssize(held)};
  for (int64_t layer = 0; layer < part.num_layers; ++layer) {
    heads.first_layer = part.first_layer + static_cast<int32_t>(layer);
    MR_ASSIGN_OR_RETURN(const auto of_rank, fetch_scores(shard, heads, deadline));
    for (int32_t h = 0; h < heads.num_kv_heads; ++h) {
      const int64_t head = heads.first_kv_head - part.first_kv_head + h;
      float* const to = scores.data() + (layer * part.num_kv_heads + head) * num_pages();
      for (size_t i = 0; i < held.size(); ++i) {
        to[held[i]] = of_rank[static_cast<size_t>(h) * held.size() + i];
      }
    }
  }
  return {};
}

Result<std::vector<float>> KvClient::fetch_scores(const Shard& shard, const ScoreBlock& heads,
                                                  Deadline deadline) {
  MR_ASSIGN_OR_RETURN(auto* connection, this->connection(shard.address, deadline));
  std::vector<float> scores(static_cast<size_t>(heads.num_scores()));
  const auto called = connection->call(score_request(manifest_, heads),
                                       std::as_writable_bytes(std::span(scores)), deadline);
  if (!called.ok()) {
    connections_.erase(shard.address);
    return of_request(manifest_, called.error());
  }
  MR_RETURN_IF_ERROR(check_score_reply(*called, shard.address, scores));
  return scores;
}

}  // namespace millrace::kvclient
