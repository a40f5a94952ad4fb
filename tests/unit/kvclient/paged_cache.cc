// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kvclient/paged_cache.h"

#include <algorithm>
#include <cstring>

#include "common/units.h"

namespace millrace::test {

namespace {

constexpr std::byte kUntouched{0xa5};
constexpr int64_t kPageTokens = 64;

}  // namespace

PagedCache::PagedCache(const FakeRanks& ranks, const PagedShape& shape)
    : ranks_(ranks),
      shape_(shape),
      row_bytes_(ranks.manifest().layout.head_dim * ranks.manifest().element_bytes()) {
  const int64_t used = ceil_div(shape.num_tokens, shape.block_tokens);
  num_blocks_ = 2 * used + 3;
  // Scattered, except for two adjacent ones: 3, 4, then every other block from the end.
  for (int64_t i = 0; i < used; ++i) {
    const int64_t id = i < 2 ? 3 + i : num_blocks_ - 1 - 2 * (i - 2);
    block_ids_.push_back(static_cast<int32_t>(id));
  }
  std::sort(block_ids_.begin() + std::min<ptrdiff_t>(2, used), block_ids_.end(), std::greater<>());
  const int64_t bytes = 2 * num_blocks_ * shape.num_kv_heads * shape.block_tokens * row_bytes_;
  layers_.assign(static_cast<size_t>(shape.num_layers),
                 std::vector<std::byte>(static_cast<size_t>(bytes), kUntouched));
}

PagedCache::Strides PagedCache::strides() const {
  const int64_t heads = shape_.num_kv_heads;
  const int64_t tokens = shape_.block_tokens;
  const int64_t row = row_bytes_;
  const int64_t plane = num_blocks_ * heads * tokens * row;
  switch (shape_.layout) {
    case Layout::kNhdTwoTensors:
    case Layout::kNhdOneTensor:
      return {.block = tokens * heads * row, .head = row, .token = heads * row, .v = plane};
    case Layout::kHndTwoTensors:
      return {.block = tokens * heads * row, .head = tokens * row, .token = row, .v = plane};
    case Layout::kHndKvSideBySide:
      return {
          .block = tokens * heads * 2 * row, .head = tokens * 2 * row, .token = 2 * row, .v = row};
    case Layout::kNhdKvSideBySide:
      return {
          .block = tokens * heads * 2 * row, .head = 2 * row, .token = heads * 2 * row, .v = row};
    case Layout::kHndKvPages:
      return {.block = tokens * heads * 2 * row,
              .head = tokens * 2 * row,
              .token = row,
              .v = tokens * row};
  }
  return {};
}

kvclient::PullRequest PagedCache::request() {
  const auto to = strides();
  kvclient::PullRequest request{.first_layer = shape_.first_layer,
                                .first_kv_head = shape_.first_kv_head,
                                .num_kv_heads = shape_.num_kv_heads,
                                .dtype = find_dtype(ranks_.manifest().layout.dtype).value(),
                                .head_dim = ranks_.manifest().layout.head_dim,
                                .block_tokens = shape_.block_tokens,
                                .first_token = shape_.first_token,
                                .num_tokens = shape_.num_tokens,
                                .block_ids = block_ids_,
                                .layers = {},
                                .timeout = std::chrono::seconds(60)};
  for (auto& memory : layers_) {
    request.layers.push_back({.k = memory.data(),
                              .v = memory.data() + to.v,
                              .block_stride = to.block,
                              .head_stride = to.head,
                              .token_stride = to.token});
  }
  return request;
}

std::vector<std::byte> PagedCache::expected(int32_t layer) const {
  const auto to = strides();
  std::vector<std::byte> memory(layers_.front().size(), kUntouched);
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    std::vector<std::byte> page;
    for (int64_t i = 0; i < shape_.num_tokens; ++i) {
      const int64_t token = shape_.first_token + i;
      const int32_t head = shape_.first_kv_head + h;
      if (manifest_ != nullptr && !manifest_->has_page(layer, head, token / kPageTokens)) continue;
      if (i == 0 || token % kPageTokens == 0) {
        page = ranks_.page(layer, head, token / kPageTokens);
      }
      const auto* k = page.data() + token % kPageTokens * row_bytes_;
      const auto* v = k + kPageTokens * row_bytes_;
      auto* at = memory.data() +
                 block_ids_[static_cast<size_t>(i / shape_.block_tokens)] * to.block + h * to.head +
                 i % shape_.block_tokens * to.token;
      std::memcpy(at, k, static_cast<size_t>(row_bytes_));
      std::memcpy(at + to.v, v, static_cast<size_t>(row_bytes_));
    }
  }
  return memory;
}

std::string PagedCache::difference_of_layer(int32_t layer) const {
  const auto& found = layers_[static_cast<size_t>(layer - shape_.first_layer)];
  const auto wanted = expected(layer);
  const auto at = std::mismatch(wanted.begin(), wanted.end(), found.begin()).first;
  if (at == wanted.end()) return "";
  return fmt::format("layer {}, byte {} of {}", layer, at - wanted.begin(), wanted.size());
}

std::string PagedCache::difference() const {
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    auto found = difference_of_layer(shape_.first_layer + layer);
    if (!found.empty()) return found;
  }
  return "";
}

bool PagedCache::untouched() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& memory) {
    return std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == kUntouched; });
  });
}

}  // namespace millrace::test
