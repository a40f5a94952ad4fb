// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/units.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::kvclient {

namespace {

constexpr int32_t kManifestVersion = 1;
// Version for a cache that is kept in part.
constexpr int32_t kPartialVersion = 2;
// Versions for a cache in 8-bit floats, whether it is kept in part or not; the second has scales by
// kv head.
// kv head.
constexpr int32_t kFloat8Version = 3;
constexpr int32_t kHeadScalesVersion = 4;
constexpr int32_t kPageTokens = 64;
// Bounds of what a manifest may claim: far above any model, and far below what would overflow.
constexpr int64_t kMaxTokens = int64_t{1} << 32;
constexpr int32_t kMaxDimension = 1 << 16;

Result<void> check_layout(const KvLayout& layout, int64_t num_tokens) {
  if (layout.page_layout != "k-then-v") {
    return error(Errc::kUnsupported, "page layout is '{}'; this client reads 'k-then-v'",
                 layout.page_layout);
  }
  if (!find_dtype(layout.dtype).has_value() && layout.dtype != kFloat8KvName) {
    return error(Errc::kUnsupported,
                 "KV dtype is '{}'; this client reads float32, bfloat16, float16 and {}",
                 layout.dtype, kFloat8KvName);
  }
  if (layout.page_tokens != kPageTokens) {
    return error(Errc::kUnsupported, "pages have {} tokens; this client reads pages of {}",
                 layout.page_tokens, kPageTokens);
  }
  const auto dimension_ok = [](int32_t x) { return x > 0 && x <= kMaxDimension; };
  if (!dimension_ok(layout.num_layers) || !dimension_ok(layout.num_kv_heads) ||
      !dimension_ok(layout.head_dim) || num_tokens <= 0 || num_tokens > kMaxTokens) {
    return error(Errc::kInvalidArgument,
                 "manifest describes {} tokens, {} layers, {} kv heads, head dim {}", num_tokens,
                 layout.num_layers, layout.num_kv_heads, layout.head_dim);
  }
  return {};
}

Result<void> check_shard(const Shard& shard, const Manifest& manifest) {
  const int64_t end_head = int64_t{shard.first_kv_head} + shard.num_kv_heads;
  if (shard.first_kv_head < 0 || shard.num_kv_heads <= 0 ||
      end_head > manifest.layout.num_kv_heads) {
    return error(Errc::kInvalidArgument, "rank {}: kv heads [{}, {}) of {}", shard.rank,
                 shard.first_kv_head, end_head, manifest.layout.num_kv_heads);
  }
  for (const auto& range : shard.token_ranges) {
    if (range.begin < 0 || range.begin >= range.end || range.end > manifest.num_tokens ||
        range.begin % kPageTokens != 0) {
      return error(Errc::kInvalidArgument,
                   "rank {}: tokens [{}, {}) of {}: ranges begin at pages of {} and end in the "
                   "prompt",
                   shard.rank, range.begin, range.end, manifest.num_tokens, kPageTokens);
    }
  }
  return {};
}

Result<void> check_covered(int32_t kv_head, const Manifest& manifest) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& shard : manifest.shards) {
    if (kv_head < shard.first_kv_head || kv_head - shard.first_kv_head >= shard.num_kv_heads) {
      continue;
    }
    for (const auto& range : shard.token_ranges) ranges.emplace_back(range.begin, range.end);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > covered) break;
    covered = std::max(covered, end);
  }
  if (covered >= manifest.num_tokens) return {};
  return error(Errc::kInvalidArgument, "kv head {}: no shard holds token {} of {}", kv_head,
               covered, manifest.num_tokens);
}

Result<void> check_scales(const Manifest& manifest) {
  const auto& layout = manifest.layout;
  const auto& scales = layout.scales.all();
  if (manifest.is_float8() != (manifest.version >= kFloat8Version) ||
      layout.scales.by_head() != (manifest.version == kHeadScalesVersion)) {
    return error(Errc::kInvalidArgument, "a manifest of version {} of a cache in {}, {} scales",
                 manifest.version, layout.dtype, scales.size());
  }
  const int64_t of_layer = layout.scales.by_head() ? layout.num_kv_heads : 1;
  const int64_t wanted = manifest.is_float8() ? layout.num_layers * of_layer : 0;
  if (std::ssize(scales) != wanted) {
    return error(Errc::kInvalidArgument, "{} scales; a cache in {} of {} layers has {}",
                 scales.size(), layout.dtype, layout.num_layers, wanted);
  }
  for (const KvScale& scale : scales) {
    if (is_kv_scale(scale.k) && is_kv_scale(scale.v)) continue;
    return error(Errc::kInvalidArgument,
                 "layer {}: scales of {} for K and {} for V; must be from 2^-60 to 2^60",
                 (&scale - scales.data()) / of_layer, scale.k, scale.v);
  }
  return {};
}

Result<void> check_kept(const Manifest& manifest) {
  const auto& kept = manifest.kept_pages;
  if (kept.has_value() != (manifest.version == kPartialVersion) &&
      manifest.version < kFloat8Version) {
    return error(Errc::kInvalidArgument, "a manifest of version {} {} kept pages", manifest.version,
                 kept ? "names" : "does not name");
  }
  if (!kept) return {};
  const auto& layout = manifest.layout;
  if (kept->num_layers() != layout.num_layers || kept->num_kv_heads() != layout.num_kv_heads ||
      kept->num_pages() != manifest.num_pages()) {
    return error(Errc::kInvalidArgument,
                 "kept pages are not those of {} layers, {} kv heads, {} pages", layout.num_layers,
                 layout.num_kv_heads, manifest.num_pages());
  }
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      if (!kept->pages(layer, head).empty()) continue;
      return error(Errc::kInvalidArgument, "layer {}, kv head {}: no page is kept", layer, head);
    }
  }
  return {};
}

}  // namespace

int64_t Manifest::num_pages() const {
  return ceil_div(num_tokens, layout.page_tokens);
}

int64_t Manifest::element_bytes() const {
  if (is_float8()) return 1;
  const auto dtype = find_dtype(layout.dtype);
  return dtype ? dtype_bytes(*dtype) : 0;
}

int64_t Manifest::page_bytes() const {
  return int64_t{2} * layout.page_tokens * layout.head_dim * element_bytes();
}

Result<void> check_manifest(const Manifest& manifest) {
  if (manifest.version < kManifestVersion || manifest.version > kHeadScalesVersion) {
    return error(Errc::kUnsupported, "manifest version is {}; this client reads {} to {}",
                 manifest.version, kManifestVersion, kHeadScalesVersion);
  }
  MR_RETURN_IF_ERROR(check_layout(manifest.layout, manifest.num_tokens));
  MR_RETURN_IF_ERROR(check_scales(manifest));
  MR_RETURN_IF_ERROR(check_kept(manifest));
  for (const auto& shard : manifest.shards) MR_RETURN_IF_ERROR(check_shard(shard, manifest));
  for (int32_t head = 0; head < manifest.layout.num_kv_heads; ++head) {
    MR_RETURN_IF_ERROR(check_covered(head, manifest));
  }
  return {};
}

}  // namespace millrace::kvclient
