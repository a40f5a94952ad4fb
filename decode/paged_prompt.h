// SPDX-License-Identifier: Apache-2.0
// A handed-over cache attended progressively, of which a decode rank holds what fits: the pool, the
// digests, what comes ahead, and the attention over them, as a generator sees it.
#pragma once

#include <memory>
#include <optional>

#include "comm/api/transport.h"
#include "decode/attention/cpu_page_kernel.h"
#include "decode/layer_lookahead.h"
#include "decode/page_intake.h"
#include "decode/pool/rank_pages.h"
#include "kvclient/handover/handover_feed.h"
#include "model/generator.h"

namespace millrace::decode {

struct ProgressiveOptions {
  double mass = 0.98;              // of each head's attention, in each layer; above 0, at most 1
  bool proven = false;             // true: BoundRule, false: CalibratedRule
  int64_t pages_memory_bytes = 0;  // of a rank; 0: room for all its pages
  // On a GPU: page-locked memory of the host for all pages, taken before there is a prompt. 0:
  // taken once the number of pages is known.
  int64_t host_memory_bytes = 0;
  bool predict = true;
  DecodeStart start = DecodeStart::kNeed;
  Eviction eviction = Eviction::kLeastUsed;
  // Replaces `mass` and `proven`.
  std::shared_ptr<const kernels::PageRule> rule = {};
};

struct ProgressiveReport {
  int64_t num_slots = 0;    // of the pool
  int64_t layer_pages = 0;  // of one layer, over the rank's kv heads
  ProgressiveStats attention;
  PoolStats pool;
  LookaheadStats lookahead;
  IntakeTimes intake;

  // Adds another rank's report.
  void add(const ProgressiveReport& other);
};

class PagedPrompt final : public model::PromptAttention {
 public:
  struct Parts {
    comm::Transport* transport = nullptr;
    kvclient::PullClient* client = nullptr;
    std::shared_ptr<const kvclient::Manifest> manifest;  // has passed check_manifest
    std::shared_ptr<kvclient::HandoverFeed> feed;
    const model::ModelWeights* weights = nullptr;
    int num_threads = 1;
  };
  // Begins to take in pages. All parts outlive it. kInvalidArgument: too little memory.
  static Result<std::unique_ptr<PagedPrompt>> open(const Parts& parts,
                                                   const ProgressiveOptions& options,
                                                   double hot_share, Deadline deadline);

  // Waits until decoding may begin.
  Result<void> wait(Deadline deadline);

  void begin_layer(int32_t layer, const float* hidden, int32_t position) override;
  Result<void> attend(const Step& step, Deadline deadline) override;

  ProgressiveReport report() const;
  kvclient::PullStats pulled() const { return source_.stats(); }

 private:
  PagedPrompt(const Parts& parts, const ProgressiveOptions& options, const CacheShape& shape,
              int64_t num_slots, double hot_share, Deadline deadline);

  const Parts parts_;
  const ProgressiveOptions options_;
  const CacheShape shape_;
  const Deadline deadline_;
  const std::shared_ptr<const kernels::PageRule> rule_;
  RankPages source_;
  PagePool pool_;
  PageDigests digests_;
  CpuPageKernel kernel_;
  ProgressiveAttention attention_;
  PageIntake intake_;
  std::unique_ptr<LayerLookahead> lookahead_;  // last: its thread uses all of the above
};

}  // namespace millrace::decode
