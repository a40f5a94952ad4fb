// SPDX-License-Identifier: Apache-2.0
// Reads what a handed-over KV cache says of its pages, their digests and scores, on the caller's
// thread, one call after the other; the decode node and the C interface do. Benchmarks and tests also
// read pages this way, by (layer, kv head, page range); PullClient does it on threads of its own, over
// many connections, into a decode engine's memory. The manifest says which rank serves a page,
// whatever the tensor-parallel degree on either side.
//
//   auto client = KvClient(transport, manifest, {});
//   client.pull(layer, kv_head, 0, client.num_pages(), destination, Deadline::after(10s));
//
// Every page is checked against the checksum taken when it was written. A page that differs is
// fetched again, up to `max_refetches` times, then kCorrupt. A rank that has no memory to read
// pages for one more reader is asked again until the deadline. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/result.h"
#include "common/tier.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/manifest/shard_spans.h"
#include "kvclient/order/page_run.h"
#include "kvclient/order/pull_lanes.h"
#include "kvclient/pull_stats.h"

namespace millrace::kvclient {

struct KvClientOptions {
  int32_t pages_per_request = 64;  // 4 MiB of 64 KiB pages: large enough for rendezvous to pay
  int32_t max_refetches = 2;
};

class KvClient {
 public:
  // `transport` outlives the client. The manifest must have passed check_manifest.
  KvClient(comm::Transport& transport, Manifest manifest, const KvClientOptions& options);

  const Manifest& manifest() const { return manifest_; }
  int64_t num_pages() const;  // of the prompt
  int64_t page_bytes() const;

  // Pages [first_page, first_page + num_pages) of one layer and kv head, in order, into
  // `destination` (num_pages * page_bytes()). Errors: kInvalidArgument (outside the manifest),
  // kNotFound (lease over or foreign; a page that is not kept), kUnavailable (not there yet),
  // kCorrupt, kPeerLost, kExhausted (until the deadline), kDeadlineExceeded.
  Result<std::vector<PulledPage>> pull(int32_t layer, int32_t kv_head, int64_t first_page,
                                       int64_t num_pages, std::span<std::byte> destination,
                                       Deadline deadline);
  // The pages' digests instead: [num_pages, 3, head_dim] float32 (min, max, radius); 0 for pages
  // that are not kept.
  Result<std::vector<float>> pull_digests(int32_t layer, int32_t kv_head, int64_t first_page,
                                          int64_t num_pages, Deadline deadline);

  // Scores of all pages of these layers and kv heads, kept or not: [num_layers, num_kv_heads,
  // num_pages()]. The hot list follows from them (order/hot_list.h).
  Result<std::vector<float>> pull_scores(int32_t first_layer, int32_t num_layers,
                                         int32_t first_kv_head, int32_t num_kv_heads,
                                         Deadline deadline);

  const PullStats& stats() const { return stats_; }

 private:
  struct Run {  // pages on one rank; consecutive unless named
    const Shard* shard = nullptr;
    int64_t first_page = 0;
    int64_t num_pages = 0;
    std::vector<int64_t> named;
  };
  const ShardSpans& spans(int32_t kv_head);
  Result<std::vector<Run>> runs(int32_t kv_head, int64_t first_page, int64_t num_pages);
  Result<comm::TransportConnection*> connection(const std::string& address, Deadline deadline);
  Result<std::vector<PulledPage>> fetch(const Run& run, int32_t layer, int32_t kv_head,
                                        bool digests, std::span<std::byte> destination,
                                        Deadline deadline);
  Result<std::vector<PulledPage>> fetch_once(const Run& run, int32_t layer, int32_t kv_head,
                                             bool digests, std::span<std::byte> destination,
                                             Deadline deadline);
  Result<void> fetch_checked(const Run& run, int32_t layer, int32_t kv_head,
                             std::span<std::byte> destination, std::vector<PulledPage>& pages,
                             Deadline deadline);
  // Adds one rank's scores to `scores`, which covers `part`.
  Result<void> add_scores(const PullLane& lane, const PullPart& part, std::vector<float>& scores,
                          Deadline deadline);
  Result<std::vector<float>> fetch_scores(const Shard& shard, const ScoreBlock& heads,
                                          Deadline deadline);
  Result<void> check_kept(int32_t layer, int32_t kv_head, int64_t first_page,
                          int64_t num_pages) const;
  Result<void> check_range(int32_t layer, int32_t kv_head, int64_t first_page,
                           int64_t num_pages) const;

  comm::Transport& transport_;
  Manifest manifest_;
  KvClientOptions options_;
  std::map<int32_t, ShardSpans> spans_;  // of the kv heads asked for so far
  std::map<std::string, std::unique_ptr<comm::TransportConnection>> connections_;
  PullStats stats_;
};

}  // namespace millrace::kvclient
