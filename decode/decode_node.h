// SPDX-License-Identifier: Apache-2.0
// The reference decode node: with a tensor-parallel degree of its own (ranks as threads), or one
// GPU; one KV client per rank, and greedy generation from what was pulled. Small on purpose: it
// exists so that every claim about a handed-over cache can be checked end to end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/transport.h"
#include "common/dtype.h"
#include "common/result.h"
#include "decode/mlp/predicted_mlp.h"
#include "decode/paged_prompt.h"
#include "kernels/pages/device_pages.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/pull_client.h"

namespace millrace::decode {

// kDense: pulls the whole cache and attends to all of it. kProgressive: paged_prompt.h.
enum class AttentionMode { kDense, kProgressive };

struct DecodeOptions {
  std::string model_directory;
  std::optional<int> gpu;  // its number; none: on the CPU. Only kProgressive on one rank
  int tp = 1;
  int threads_per_rank = 1;
  int32_t max_tokens = 16;  // generated tokens in all, the manifest's first one included
  bool ignore_eos = false;  // goes on after an end-of-text token
  // Accepts a cache of other weights of the same shape, for example another file format of the same
  // model, which looks like another model.
  bool any_weights = false;
  // The dtype of caches, if it is known before they come; default: the checkpoint's own. A model
  // that was loaded ahead for another dtype is loaded again.
  std::optional<DType> cache_dtype = {};
  kvclient::PullClientOptions client;
  kvclient::PullOrder order = kvclient::PullOrder::kPosition;
  double hot_share = kvclient::kDefaultHotShare;  // of kCriticality
  Duration timeout = std::chrono::minutes(10);    // pull and generation together
  AttentionMode attention = AttentionMode::kDense;
  // Called once the model is loaded and memory is taken. Only then is the feed waited for.
  std::function<void()> on_loaded = {};
  ProgressiveOptions progressive;  // `order` and `client`'s pages per request are kDense's
  PredictedMlpOptions mlp;         // on the CPU
  // Goes on with these tokens, whatever it chooses itself (model::GenerateRequest::follow); the
  // first is the prefill's.
  std::vector<int32_t> follow = {};
};

struct DecodeReport {
  std::vector<int32_t> token_ids;
  std::string_view finish_reason;     // model::finish_reason
  kvclient::PullStats pulled;         // over all ranks; seconds: the slowest rank's
  int64_t bytes_while_computing = 0;  // pulled before the event of the last layer
  int64_t bytes_before_done = 0;
  // From `done`, or from when a rank could pull if that was later, until the last rank's cache was
  // complete; 0 if it was complete by then.
  double tail_s = 0;
  double hot_s =
      0;  // from the start of the slowest rank's pull until the hot lists of all layers were there
  std::vector<uint64_t> cache_checksums;  // by rank, of kDense
  int model_loads = 0;                    // of each rank
  double generate_s = 0;
  // Time to the first token that this node computed: from `done`, or from when the ranks could pull
  // if that was later. 0: it computed none.
  double first_token_s = 0;
  TimePoint pull_began = {};  // the first rank's
  TimePoint generate_began = {};
  ProgressiveReport progressive;  // for kProgressive, over all ranks; on a GPU:
  std::optional<kernels::DevicePagesStats> device_pages = {};
  std::optional<PredictedMlpReport> mlp = {};  // if neurons were predicted; over all ranks
};

// Pulls what `feed` tells of, and generates once the result has come. connect() of `transport` must
// be thread-safe, as it is in comm/ucx and comm/local.
Result<DecodeReport> decode(comm::Transport& transport,
                            const std::shared_ptr<kvclient::HandoverFeed>& feed,
                            const DecodeOptions& options);
// Pulls and generates for a request that is done.
Result<DecodeReport> decode(comm::Transport& transport, const kvclient::Manifest& manifest,
                            const DecodeOptions& options);

}  // namespace millrace::decode
