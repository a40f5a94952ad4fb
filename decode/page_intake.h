// SPDX-License-Identifier: Apache-2.0
// Brings a decode rank what it needs before it asks for pages: each layer's digests once the layer
// is ready, then the pages that carry the most attention, then all others as far as there is room.
// It has a thread of its own, which continues during decoding.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/api/transport.h"
#include "common/clock.h"
#include "decode/attention/progressive_attention.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/kv_client.h"

namespace millrace::decode {

// When decoding begins. kNeed: once the digests of all layers have come; pages come when first
// needed, and in the background. kHot: once the hot lists have come too. kWhole: once all pages
// have come, or the pool is full.
enum class DecodeStart { kNeed, kHot, kWhole };

struct IntakeTimes {
  TimePoint began;
  double digests_s = 0, hot_s = 0, whole_s = 0;  // since `began`; 0: not yet
  int64_t digest_bytes = 0;                      // of digests and scores
  int64_t hot_pages = 0;                         // on the hot lists
};

class PageIntake {
 public:
  // All outlive it. `manifest` has passed check_manifest.
  struct Parts {
    comm::Transport* transport = nullptr;
    const kvclient::Manifest* manifest = nullptr;
    kvclient::HandoverFeed* feed = nullptr;
    PageDigests* digests = nullptr;
    PagePool* pool = nullptr;
    ProgressiveAttention* attention = nullptr;  // told how many pages to expect: the hot ones
  };
  PageIntake(const Parts& parts, const CacheShape& shape, double hot_share, Deadline deadline);
  // Ends after the batch under way.
  ~PageIntake();

  // Waits until decoding may begin. An error is that of whatever failed before.
  Result<void> wait(DecodeStart start, Deadline deadline);
  IntakeTimes times() const;

 private:
  enum class Stage { kBegun, kDigests, kHot, kWhole };
  struct Hot {
    std::vector<kvclient::PageName> pages;  // the hottest first
    size_t done = 0;
  };
  Result<void> run();
  Result<void> take_layer(int32_t layer);
  Result<void> take_scores(int32_t layer);
  // Brings one batch; returns whether there was room.
  Result<bool> fill(Hot& hot);
  Result<void> fill_rest();
  void enter(Stage stage);
  bool stopping() const;

  const Parts parts_;
  const CacheShape shape_;
  const double hot_share_;
  const Deadline deadline_;
  kvclient::KvClient client_;
  std::vector<Hot> hot_, rest_;  // by layer

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kBegun;
  std::optional<Error> failure_;
  bool stopping_ = false;
  IntakeTimes times_;
  std::thread thread_;
};

}  // namespace millrace::decode
