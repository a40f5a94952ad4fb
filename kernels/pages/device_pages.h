// SPDX-License-Identifier: Apache-2.0
// The pages of a cache on a device, for decode steps that attend to them progressively
// (decode/README.md). Page-locked host memory holds all pages, slots in device memory hold copies
// of as many as fit, and device memory also holds the digests of all. The device decides which
// pages a step attends to, by the same order and the same rule as a CPU, up to rounding; the host
// only enqueues. Pages that are not kept take no part, although their places in host memory exist.
//
//   set_digests(), fill_layer(), complete()
//   for each layer of a token:
//     begin_layer(l)
//     foresee(l + 1, q)                       concurrently; q comes from a second device
//     attend({.layer = l, ...})
//
// The kernel that attends to a page without a slot reads it from host memory, over the bus. So no
// step waits for a copy, and slots decide how long a step takes, never what it computes. Pages that
// were foreseen or, without that, pages that had to be read from the host take the slots of less
// useful pages. A page's usefulness is the number of tokens it was read for, where one of kHalfLife
// tokens ago counts half.
//
// Used by one thread, that of the device. The device outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/dtype.h"
#include "common/kept_pages.h"
#include "common/kv_scales.h"
#include "common/result.h"
#include "kernels/pages/page_rule.h"

namespace millrace::kernels {

struct DevicePagesShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t num_query_heads = 0;
  int32_t head_dim = 0;
  int64_t num_tokens = 0;          // of the prompt
  DType dtype = DType::kBFloat16;  // of attend()'s output and, unless `float8` is set, of the pages
  float scale = 0;                 // of scores
  // Scales of pages in 8-bit floats (e4m3), or null. Digests are of code * scale. Must outlive
  // everything that has this shape.
  const KvScales* float8 = nullptr;
  // The pages that are kept; null: all. Must outlive everything that has this shape.
  const KeptPages* kept = nullptr;
  int32_t first_kv_head = 0;  // in the model, whose numbers `kept` and `float8` use

  int64_t num_pages() const;  // of a layer and kv head, kept or not
  int64_t page_bytes() const;
  int64_t all_pages() const { return num_layers * num_kv_heads * num_pages(); }
  int64_t kept_pages() const;  // of all of them
  // `kv_head`: 0 is first_kv_head.
  bool has_page(int32_t layer, int32_t kv_head, int64_t page) const {
    return kept == nullptr || kept->has(layer, first_kv_head + kv_head, page);
  }
  int32_t group() const { return num_query_heads / num_kv_heads; }
};

struct DevicePagesOptions {
  // All pages, by layer, kv head and page, each K [64, head_dim], then V. Page-locked memory of the
  // device (Device::allocate_host), which outlives DevicePages. A page must be written before a
  // step that may attend to it; the places of pages that are not kept are never read.
  std::byte* host = nullptr;
  int64_t num_slots = 0;  // at most the number of kept pages
  PageRuleChoice rule;
};

// Sums over all layers, since the last reset.
struct DevicePagesStats {
  int64_t tokens = 0;
  int64_t pages_read = 0;    // the rule asked for them
  int64_t pages_spared = 0;  // read ahead of the rule's answer, but not asked for
  int64_t from_host = 0;     // pages of both kinds without a slot
  // In layers that were foreseen in time: pages the rule asked for, and how many of them were
  // foreseen.
  int64_t pages_of_foreseen = 0, pages_foreseen = 0;
  int64_t copied = 0;   // into slots
  int64_t skipped = 0;  // batches that were dropped because earlier copies had not ended
};

class DevicePages {
 public:
  static constexpr double kHalfLife = 8;

  struct Step {
    int32_t layer = 0;
    // In the prompt. If not 0, all tokens from this one on are attended to: within the window of a
    // layer no pages are left out.
    int64_t first_token = 0;
    const float* q = nullptr;  // [query heads, head_dim]; device memory, as all pointers here
    const float* tail_lse = nullptr;  // [query heads] of the tokens behind the prompt; -inf: none
    const float* tail_out = nullptr;  // [query heads, head_dim] of the same tokens
    // [query heads] of the layer (AttentionParams::sinks), or null. They affect neither which pages
    // are read nor lse.
    const float* sinks = nullptr;
    // [query heads, head_dim] over the attended pages and the tail, in the shape's dtype.
    void* out = nullptr;
    float* lse = nullptr;  // [query heads] of the pages alone, or null
    // Of each kv head, only the first `max_pages` pages of the order may be read, at least four; 0:
    // all.
    int64_t max_pages = 0;
  };

  virtual ~DevicePages() = default;

  // [num_pages, 3, head_dim]: min, max, radius. Host memory, read before the call returns.
  virtual Result<void> set_digests(int32_t layer, int32_t kv_head,
                                   std::span<const float> digests) = 0;
  // Called once all host pages of the layer are written. If there is a slot for every kept page,
  // copies the layer's pages into their slots, in stream order with the steps. Does nothing the
  // second time.
  virtual void fill_layer(int32_t layer) = 0;
  // Called once all host pages are written: fills the remaining layers and waits.
  virtual Result<void> complete(Deadline deadline) = 0;

  // Token by token and, within each token, layer by layer.
  virtual void begin_layer(int32_t layer) = 0;
  // `layer` follows the one begun last. `q`: [query heads, head_dim], computed by the device that
  // make_cuda_device_pages got as `ahead`. Runs in that device's order.
  virtual void foresee(int32_t layer, const float* q) = 0;
  virtual void attend(const Step& step) = 0;

  // One list for each kv head.
  using PageLists = std::vector<std::vector<int32_t>>;
  // The pages of the step's layer that it may attend to, in the order of attention; `max_pages`
  // counts in this order. Waits.
  virtual Result<PageLists> order(const Step& step, Deadline deadline) = 0;
  // The pages that the rule asked for in the last step, in the order of attention. If `max_pages`
  // was too few for a kv head that has pages, its list is empty and `out` is incomplete; the step
  // may be repeated with more. Waits.
  virtual Result<PageLists> pages_read(Deadline deadline) = 0;
  // Waits for everything enqueued.
  virtual Result<DevicePagesStats> stats(Deadline deadline) = 0;
  virtual void reset_stats() = 0;
};

}  // namespace millrace::kernels
