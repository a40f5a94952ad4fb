// SPDX-License-Identifier: Apache-2.0
#include "bench/kvclient/whole_cache.h"

#include "common/dtype.h"

namespace millrace::bench {

int64_t cache_bytes(const kvclient::Manifest& manifest) {
  const auto& layout = manifest.layout;
  return manifest.num_pages() * manifest.page_bytes() * layout.num_layers * layout.num_kv_heads;
}

kvclient::PullRequest whole_cache(const kvclient::Manifest& manifest, std::byte* memory) {
  const auto& layout = manifest.layout;
  const int64_t page = manifest.page_bytes();
  kvclient::PullRequest request{.num_kv_heads = layout.num_kv_heads,
                                .dtype = find_dtype(layout.dtype).value(),
                                .head_dim = layout.head_dim,
                                .num_tokens = manifest.num_tokens,
                                .block_ids = {},
                                .layers = {}};
  for (int64_t block = 0; block < manifest.num_pages(); ++block) {
    request.block_ids.push_back(static_cast<int32_t>(block));
  }
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    auto* k = memory + layer * manifest.num_pages() * layout.num_kv_heads * page;
    request.layers.push_back({.k = k,
                              .v = k + page / 2,
                              .block_stride = layout.num_kv_heads * page,
                              .head_stride = page,
                              .token_stride = layout.head_dim * manifest.element_bytes()});
  }
  return request;
}

}  // namespace millrace::bench
