// SPDX-License-Identifier: Apache-2.0
// A page's place, size and digest, and what reading pages took.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/content/page_keys.h"
#include "common/dtype.h"
#include "common/kv_scales.h"
#include "common/page_tokens.h"
#include "common/tier.h"

namespace millrace::kvstore {

using millrace::kNumTiers;
using millrace::PerTier;
using millrace::Tier;

// Upper bound of the store's own record of a page, PageEntry.
inline constexpr int64_t kPageEntryBytes = 64;

struct KvGeometry {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;   // held by this rank
  int32_t first_kv_head = 0;  // of the model
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;  // as layers come from the engine, and as prefixes go back to it
  int32_t page_tokens = kPageTokens;
  // Scales of pages in 8-bit floats, by layer; null if pages are in `dtype`.
  std::shared_ptr<const KvScales> float8 = nullptr;

  // Of an element of K or V as it is stored.
  int64_t element_bytes() const { return float8 ? 1 : dtype_bytes(dtype); }
  int64_t page_bytes() const { return 2ll * page_tokens * head_dim * element_bytes(); }
  int64_t digest_bytes() const { return 3ll * head_dim * int64_t{sizeof(float)}; }
  // Host memory that a page takes besides its bytes, whichever tier they are in.
  int64_t record_bytes() const { return digest_bytes() + kPageEntryBytes; }
  bool operator==(const KvGeometry&) const = default;
};

// A page of a prompt, named by its content.
struct CachedPage {
  int64_t page = 0;
  PageContentKey key{};
};

// kv_head counts in the model, not in the rank.
struct PageKey {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int64_t page = 0;  // of the prompt: tokens [64 page, 64 page + 64)

  bool operator==(const PageKey&) const = default;
};

// Layers [first_layer, first_layer + num_layers) of kv heads [first_kv_head, ...). Heads count in
// the model.
struct HeadBlock {
  int32_t first_layer = 0;
  int32_t num_layers = 0;
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
};

// Bounds of a page's keys, [head_dim] each (kernels/api/digest.h); for several pages, [pages,
// head_dim].
struct PageDigest {
  std::span<const float> min;
  std::span<const float> max;
  std::span<const float> radius;
};

// How much was read from a tier or file, and how long it took.
struct ReadTotals {
  int64_t bytes = 0;
  double seconds = 0;
};

}  // namespace millrace::kvstore
