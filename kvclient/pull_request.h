// What a pull is to bring, and where it goes.
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

// Where an engine keeps one layer. Token t of block b and kv head h (from 0, of those pulled) has
// its K, head_dim elements side by side, at k + b * block_stride + h * head_stride + t *
// token_stride, and its V at the same place from v. Strides are in bytes and may be negative.
struct LayerDestination {
  std::byte* k = nullptr;  // of block 0, head 0, token 0
  std::byte* v = nullptr;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

// What a pull makes of a cache in 8-bit floats (Manifest::is_float8).
enum class Float8Cache {
  kRefused,  // the engine does not know such caches
  kCodes,  // as it is: the destination has e4m3 under the scales of the manifest, which the engine uses
  kDecoded,  // code * scale, in the destination's dtype
};

// A page and where it goes: K of its tokens and then V side by side, Manifest::page_bytes(), or as many
// elements of PullRequest::dtype where it is decoded.
struct NamedPage {
  PageName name;
  std::byte* to = nullptr;
};

// Of PullRequest::device: places are addresses of the host.
inline constexpr int32_t kHostMemory = -1;

struct PullRequest {
  // Either these alone, ascending by name and each once, with `device`, `timeout`, `priority`,
  // `ask_again` and `float8` (with `dtype`, where it decodes); or what all the other fields say.
  std::vector<NamedPage> pages = {};
  int32_t first_layer = 0;  // of the model
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  // Of the destination; the cache's must be the same, but for what `float8` says.
  DType dtype = DType::kFloat32;
  int32_t head_dim = 0;
  int32_t block_tokens = 64;             // 16, 32, 64 or 128
  int64_t first_token = 0;               // of the prompt: goes to token 0 of block_ids[0]
  int64_t num_tokens = 0;                // what lies behind them in the last block is left as it is
  std::vector<int32_t> block_ids;        // ceil(num_tokens / block_tokens) or more
  std::vector<LayerDestination> layers;  // of first_layer, ...
  // Whose memory all places are in: the ordinal of a CUDA device, as the process sees them, or
  // kHostMemory. Copies run on streams of the client's own, in no order with the engine's: what was
  // given to the device before must have left the places. A layer that is complete can be read by
  // work that is given to any stream from then on.
  int32_t device = kHostMemory;
  Duration timeout = std::chrono::minutes(10);
  int32_t priority = 0;  // pulls of a higher one go first
  // Without a feed: pages that are not there yet are asked for again, instead of kUnavailable.
  bool ask_again = false;
  // kCriticality: first what carries `hot_share` (0 to 1] of the attention mass of what is pulled, by
  // layer and kv head; each rank is asked for its scores before.
  PullOrder order = PullOrder::kPosition;
  double hot_share = kDefaultHotShare;
  // Of a cache that is kept in part (Manifest::kept_pages): the places of pages that are not there are
  // left as they are, and the engine must not attend to them; all tokens are pulled. Without it such a cache is refused.
  bool takes_part = false;
  Float8Cache float8 = Float8Cache::kRefused;
  // Layers are pulled once it says that they are there; without one, at once.
  std::shared_ptr<HandoverFeed> feed = {};
};

// kInvalidArgument: outside the manifest, or not a shape that this client writes; kUnsupported:
// another dtype, a cache that is kept in part where the request does not take that. kNotFound: a page
// by name that is not kept.
Result<void> check_request(const PullRequest& request, const Manifest& manifest);

}  // namespace millrace::kvclient
