#include "decode/pulled_cache.h"

#include <algorithm>

#include "common/aligned_buffer.h"

namespace millrace::decode {

namespace {

// Pages of one layer and kv head are pulled this many at a time, so that staging stays small.
constexpr int64_t kPagesPerPull = 256;

}  // namespace

Result<PulledCache> PulledCache::pull(KvClient& client, const model::ShardShape& shard,
                                      kernels::Device& device, Deadline deadline) {
  const auto& layout = client.manifest().layout();
  const DType dtype = layout.dtype() == "float32" ? DType::kFloat32 : DType::kBFloat16;
  const auto num_tokens = static_cast<int64_t>(client.manifest().num_tokens());
  const auto head_dim = static_cast<int32_t>(layout.head_dim());
  const int64_t row_bytes = head_dim * dtype_bytes(dtype);
  const int64_t head_bytes = num_tokens * row_bytes;
  const int64_t page_tokens = layout.page_tokens();
  AlignedBuffer staging(kPagesPerPull * client.page_bytes());

  PulledCache cache;
  for (uint32_t layer = 0; layer < layout.num_layers(); ++layer) {
    MR_ASSIGN_OR_RETURN(auto k, device.allocate(shard.num_kv_heads * head_bytes));
    MR_ASSIGN_OR_RETURN(auto v, device.allocate(shard.num_kv_heads * head_bytes));
    for (int32_t head = 0; head < shard.num_kv_heads; ++head) {
      for (int64_t first = 0; first < client.num_pages(); first += kPagesPerPull) {
        const int64_t count = std::min(kPagesPerPull, client.num_pages() - first);
        MR_RETURN_IF_ERROR(client.pull(
            static_cast<int32_t>(layer), shard.first_kv_head + head, first, count,
            {staging.as<std::byte>(), static_cast<size_t>(count * client.page_bytes())}, deadline));
        for (int64_t i = 0; i < count; ++i) {
          const int64_t token = (first + i) * page_tokens;
          const int64_t bytes = std::min(page_tokens, num_tokens - token) * row_bytes;
          const auto* page = staging.as<std::byte>() + i * client.page_bytes();
          const int64_t at = head * head_bytes + token * row_bytes;
          device.copy(k.as<std::byte>() + at, page, bytes);
          device.copy(v.as<std::byte>() + at, page + client.page_bytes() / 2, bytes);
        }
        MR_RETURN_IF_ERROR(device.synchronize(deadline));
      }
    }
    cache.slabs_.push_back({.k = k.data(),
                            .v = v.data(),
                            .dtype = dtype,
                            .num_kv_heads = shard.num_kv_heads,
                            .head_dim = head_dim,
                            .num_tokens = num_tokens,
                            .token_stride = num_tokens});
    cache.storage_.push_back(std::move(k));
    cache.storage_.push_back(std::move(v));
  }
  return cache;
}

}  // namespace millrace::decode
