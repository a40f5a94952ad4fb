#include <algorithm>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "kernels/index/tiling.h"
#include "kvclient/kv_client.h"

namespace millrace::decode {

namespace {

constexpr uint32_t kManifestVersion = 1;
// Bounds of what a manifest may claim, far above any model, far below what would overflow.
constexpr uint64_t kMaxTokens = uint64_t{1} << 32;
constexpr uint32_t kMaxDimension = 1u << 16;

Result<void> check_layout(const protocol::KvLayout& layout, uint64_t num_tokens) {
  if (layout.page_layout() != "k-then-v") {
    return error(Errc::kUnsupported, "page layout '{}', this client reads 'k-then-v'",
                 layout.page_layout());
  }
  if (!find_dtype(layout.dtype()).has_value()) {
    return error(Errc::kUnsupported,
                 "KV dtype '{}', this client reads float32, bfloat16 and float16", layout.dtype());
  }
  if (layout.page_tokens() != kernels::kPageTokens) {
    return error(Errc::kUnsupported, "pages of {} tokens, this client reads {}",
                 layout.page_tokens(), kernels::kPageTokens);
  }
  const auto dimension_ok = [](uint32_t x) { return x > 0 && x <= kMaxDimension; };
  if (!dimension_ok(layout.num_layers()) || !dimension_ok(layout.num_kv_heads()) ||
      !dimension_ok(layout.head_dim()) || num_tokens == 0 || num_tokens > kMaxTokens) {
    return error(Errc::kInvalidArgument,
                 "manifest describes {} tokens, {} layers, {} kv heads, head dim {}", num_tokens,
                 layout.num_layers(), layout.num_kv_heads(), layout.head_dim());
  }
  return {};
}

Result<void> check_shard(const protocol::KvShard& shard, const protocol::Manifest& manifest) {
  const uint64_t end_head = uint64_t{shard.first_kv_head()} + shard.num_kv_heads();
  if (shard.num_kv_heads() == 0 || end_head > manifest.layout().num_kv_heads()) {
    return error(Errc::kInvalidArgument, "rank {}: kv heads [{}, {}) of {}", shard.rank(),
                 shard.first_kv_head(), end_head, manifest.layout().num_kv_heads());
  }
  for (const auto& range : shard.token_ranges()) {
    if (range.begin() >= range.end() || range.end() > manifest.num_tokens() ||
        range.begin() % kernels::kPageTokens != 0) {
      return error(Errc::kInvalidArgument,
                   "rank {}: tokens [{}, {}) of {}: ranges begin at pages of {} and end in the "
                   "prompt",
                   shard.rank(), range.begin(), range.end(), manifest.num_tokens(),
                   kernels::kPageTokens);
    }
  }
  return {};
}

Result<void> check_covered(uint32_t kv_head, const protocol::Manifest& manifest) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& shard : manifest.shards()) {
    if (kv_head < shard.first_kv_head() ||
        kv_head - shard.first_kv_head() >= shard.num_kv_heads()) {
      continue;
    }
    for (const auto& range : shard.token_ranges()) ranges.emplace_back(range.begin(), range.end());
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > covered) break;
    covered = std::max(covered, end);
  }
  if (covered >= manifest.num_tokens()) return {};
  return error(Errc::kInvalidArgument, "kv head {}: no shard holds token {} of {}", kv_head,
               covered, manifest.num_tokens());
}

}  // namespace

Result<void> check_manifest(const protocol::Manifest& manifest) {
  if (manifest.version() != kManifestVersion) {
    return error(Errc::kUnsupported, "manifest version {}, this client reads {}",
                 manifest.version(), kManifestVersion);
  }
  MR_RETURN_IF_ERROR(check_layout(manifest.layout(), manifest.num_tokens()));
  for (const auto& shard : manifest.shards()) MR_RETURN_IF_ERROR(check_shard(shard, manifest));
  for (uint32_t head = 0; head < manifest.layout().num_kv_heads(); ++head) {
    MR_RETURN_IF_ERROR(check_covered(head, manifest));
  }
  return {};
}

}  // namespace millrace::decode
