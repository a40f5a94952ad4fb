// A cache's pages beside a device, for decode steps that attend to them progressively
// (decode/README.md): all of them in page-locked host memory, as many as there are slots in device
// memory too, and the digests of all in device memory. Which pages a step attends to is decided on the
// device, by the same order and the same rule as on a CPU, up to rounding: the host only enqueues. Pages
// that are not kept are as if they were not there; only their places in host memory are.
//
//   set_digests(), fill_layer(), complete()
//   for each layer of a token:
//     begin_layer(l)
//     foresee(l + 1, q)                       beside the layer: q from a device of its own
//     attend({.layer = l, ...})
//
// A page without a slot is read where it lies, over the bus, by the kernel that attends to it; so no
// step waits for a copy, and slots decide how long a step takes, never what it computes. What was
// foreseen or, without that, what had to be read from the host takes the slots of pages that are of
// less use: a page counts the tokens it was read for, one of kHalfLife tokens ago half as much.
//
// One thread, that of the device, which outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/dtype.h"
#include "common/pages/kept_pages.h"
#include "common/pages/kv_scales.h"
#include "common/result.h"
#include "kernels/pages/page_rule.h"

namespace millrace::kernels {

struct DevicePagesShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t num_query_heads = 0;
  int32_t head_dim = 0;
  int64_t num_tokens = 0;          // of the prompt
  DType dtype = DType::kBFloat16;  // of what attend() leaves and, but for `float8`, of the pages
  float scale = 0;                 // of scores
  // Of pages in 8-bit floats (e4m3); digests are of code * scale. Outlives whatever has the shape.
  const KvScales* float8 = nullptr;
  // The pages there are; null: all. Outlives whatever has the shape.
  const KeptPages* kept = nullptr;
  int32_t first_kv_head = 0;  // of the model, by which `kept` and `float8` count

  int64_t num_pages() const;  // of a layer and kv head, whether there or not
  int64_t page_bytes() const;
  int64_t all_pages() const { return num_layers * num_kv_heads * num_pages(); }
  int64_t kept_pages() const;  // of all of them
  // `kv_head`: from 0 on.
  bool has_page(int32_t layer, int32_t kv_head, int64_t page) const {
    return kept == nullptr || kept->has(layer, first_kv_head + kv_head, page);
  }
  int32_t group() const { return num_query_heads / num_kv_heads; }
};

struct DevicePagesOptions {
  // Of all pages, by layer, kv head and page, each K [64, head_dim], then V: page-locked memory of the
  // device (Device::allocate_host), which outlives the pages. A page is written before a step that may
  // attend to it; the places of those that are not kept are never read.
  std::byte* host = nullptr;
  int64_t num_slots = 0;  // at most as many as pages are kept
  PageRuleChoice rule;
};

// Over all layers, since the last reset.
struct DevicePagesStats {
  int64_t tokens = 0;
  int64_t pages_read = 0;    // that the rule asked for
  int64_t pages_spared = 0;  // read ahead of the rule's answer, and not asked for
  int64_t from_host = 0;     // of both: had no slot
  // Of layers that were foreseen in time: pages the rule asked for, and those of them foreseen.
  int64_t pages_of_foreseen = 0, pages_foreseen = 0;
  int64_t copied = 0;   // into slots
  int64_t skipped = 0;  // batches for which the copies before had not ended
};

class DevicePages {
 public:
  static constexpr double kHalfLife = 8;

  struct Step {
    int32_t layer = 0;
    // Of the prompt. Where it is not 0, all tokens from it on are attended to: a layer's window is not
    // searched for what matters in it.
    int64_t first_token = 0;
    const float* q = nullptr;         // [query heads, head_dim], device memory, as all here
    const float* tail_lse = nullptr;  // [query heads] of the tokens behind the prompt; -inf: none
    const float* tail_out = nullptr;  // [query heads, head_dim] of them
    // [query heads] of the layer (AttentionParams::sinks), or null: no part of what is read, nor of lse.
    const float* sinks = nullptr;
    // [query heads, head_dim] over the pages attended and those tokens, in the shape's dtype.
    void* out = nullptr;
    float* lse = nullptr;  // [query heads] of the pages alone, or null
    // Of the order's pages, no others than the first so many, at least four, of each kv head are read;
    // 0: all may be.
    int64_t max_pages = 0;
  };

  virtual ~DevicePages() = default;

  // [num_pages, 3, head_dim]: min, max, radius. Host memory, which is read before it returns.
  virtual Result<void> set_digests(int32_t layer, int32_t kv_head,
                                   std::span<const float> digests) = 0;
  // The layer's host pages are all there. Where every page that is kept has a slot, they are put into them,
  // in the order of steps; once for a layer, whoever asks again.
  virtual void fill_layer(int32_t layer) = 0;
  // All host pages are there: fills what is left. Waits.
  virtual Result<void> complete(Deadline deadline) = 0;

  // In the order of tokens and, for each, of layers.
  virtual void begin_layer(int32_t layer) = 0;
  // Of the layer behind the one begun last. `q`: [query heads, head_dim], which the device given to
  // make_cuda_device_pages as `ahead` is computing. In that device's order.
  virtual void foresee(int32_t layer, const float* q) = 0;
  virtual void attend(const Step& step) = 0;

  // By kv head:
  using PageLists = std::vector<std::vector<int32_t>>;
  // The pages of a step's layer that it may attend to, in the order of attention, which is what
  // `max_pages` counts. Waits.
  virtual Result<PageLists> order(const Step& step, Deadline deadline) = 0;
  // What the rule asked for in the last step, in the order of attention; nothing of a kv head that has
  // pages and for which `max_pages` was too few: `out` is not whole then, and the step may be repeated
  // with more. Waits.
  virtual Result<PageLists> pages_read(Deadline deadline) = 0;
  // Waits for all that was enqueued.
  virtual Result<DevicePagesStats> stats(Deadline deadline) = 0;
  virtual void reset_stats() = 0;
};

}  // namespace millrace::kernels
