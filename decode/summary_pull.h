// SPDX-License-Identifier: Apache-2.0
// What a decode rank knows of a cache before it has a page: scores and digests, layer after layer.
// Several threads pull them, a layer each, ahead of the taker: they are 0.8 GB for 131,072 tokens
// of an 8B model, whose digests one connection brings in some 1.5 s.
//
// Only one thread takes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/api/transport.h"
#include "common/clock.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::decode {

struct LayerSummary {
  std::vector<float> scores;  // [kv heads, pages]; 0 for pages that are not kept
  std::vector<std::vector<float>>
      digests;  // by kv head: [pages, 3, head_dim], checked (PageDigests)
};

class SummaryPull {
 public:
  // For kv heads [first_kv_head, first_kv_head + num_kv_heads) of the model. All parts outlive it.
  struct Parts {
    comm::Transport* transport = nullptr;
    const kvclient::Manifest* manifest = nullptr;  // has passed check_manifest
    kvclient::HandoverFeed* feed = nullptr;
    int32_t first_kv_head = 0;
    int32_t num_kv_heads = 0;
  };
  SummaryPull(const Parts& parts, Deadline deadline);
  // Ends after the layers under way or waited for in the feed; at the deadline at the latest.
  ~SummaryPull();

  // The next layer's summary, once it has come. The first failure fails all later calls.
  Result<LayerSummary> take();

 private:
  void pull_layers();
  Result<LayerSummary> pull(int32_t layer, kvclient::KvClient& client);

  const Parts parts_;
  const Deadline deadline_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<LayerSummary>> layers_;
  int32_t begun_ = 0, taken_ = 0;
  bool stopping_ = false;
  std::optional<Error> failure_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::decode
