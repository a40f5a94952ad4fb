// SPDX-License-Identifier: Apache-2.0
// What a pull brings, and where it goes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/dtype.h"
#include "common/result.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/order/page_run.h"
#include "kvclient/order/pull_order.h"

namespace millrace::kvclient {

// Where an engine keeps one layer. The K of token t in block b and kv head h (counted from 0 among
// those pulled), head_dim contiguous elements, is at k + b * block_stride + h * head_stride + t *
// token_stride, and its V at the same offset from v. Strides are in bytes and may be negative.
struct LayerDestination {
  std::byte* k = nullptr;  // of block 0, head 0, token 0
  std::byte* v = nullptr;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

// What a pull does with a cache in 8-bit floats (Manifest::is_float8).
enum class Float8Cache {
  kRefused,  // the engine does not know such caches
  kCodes,    // as it is: e4m3; the engine uses the scales of the manifest
  kDecoded,  // code * scale, in the destination's dtype
};

// A page and where it goes: K of its tokens, then V, contiguous: Manifest::page_bytes(), or as many
// elements of PullRequest::dtype if it is decoded.
struct NamedPage {
  PageName name;
  std::byte* to = nullptr;
};

// For PullRequest::device: destinations are in host memory.
inline constexpr int32_t kHostMemory = -1;

struct PullRequest {
  // Either `pages` alone is set, each page once and ascending by name, together with only `device`,
  // `timeout`, `priority`, `ask_again` and `float8` (with `dtype` if it decodes); or all the other
  // fields say what to pull.
  std::vector<NamedPage> pages = {};
  int32_t first_layer = 0;  // of the model
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  // Of the destination; must be the cache's, except as `float8` says.
  DType dtype = DType::kFloat32;
  int32_t head_dim = 0;
  int32_t block_tokens = 64;             // 16, 32, 64 or 128
  int64_t first_token = 0;               // of the prompt: goes to token 0 of block_ids[0]
  int64_t num_tokens = 0;                // the rest of the last block is left as it is
  std::vector<int32_t> block_ids;        // ceil(num_tokens / block_tokens) or more
  std::vector<LayerDestination> layers;  // of first_layer, ...
  // Whose memory all destinations are in: the ordinal of a CUDA device, as the process sees it, or
  // kHostMemory. Copies run on the client's own streams, unordered with the engine's: work
  // submitted to the device earlier must be finished with the destinations. Work submitted to any
  // stream after a layer is complete can read the layer.
  int32_t device = kHostMemory;
  Duration timeout = std::chrono::minutes(10);
  int32_t priority = 0;  // pulls with a higher number go first
  // Without a feed: asks again for pages that are not there yet, instead of failing with
  // kUnavailable.
  bool ask_again = false;
  // kCriticality: first what carries `hot_share` (0 to 1] of the attention mass of what is pulled,
  // by layer and kv head. Each rank is asked for its scores first.
  PullOrder order = PullOrder::kPosition;
  double hot_share = kDefaultHotShare;
  // For a cache that is kept in part (Manifest::kept_pages): the destinations of pages that are not
  // kept are left as they are, and the engine must not attend to them; all tokens must be pulled.
  // Without this flag such a cache is refused.
  bool takes_part = false;
  Float8Cache float8 = Float8Cache::kRefused;
  // Each layer is pulled once the feed says that it is ready; without a feed, at once.
  std::shared_ptr<HandoverFeed> feed = {};
};

// kInvalidArgument: outside the manifest, or a shape that this client cannot write. kUnsupported:
// another dtype, or a cache that is kept in part and `takes_part` is not set. kNotFound: a page by
// name that is not kept.
Result<void> check_request(const PullRequest& request, const Manifest& manifest);

}  // namespace millrace::kvclient
