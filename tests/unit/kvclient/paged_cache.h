// SPDX-License-Identifier: Apache-2.0
// The paged blocks of a decode engine, in each layout that engines use, and what they must hold
// after a pull, by a row-by-row copy.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvclient/pull_request.h"
#include "tests/unit/kvclient/fake_ranks.h"

namespace millrace::test {

enum class Layout {
  kNhdTwoTensors,    // K and V [blocks, tokens, heads, dim]
  kNhdOneTensor,     // [2, blocks, tokens, heads, dim]
  kHndTwoTensors,    // K and V [blocks, heads, tokens, dim]
  kHndKvSideBySide,  // [blocks, heads, tokens, 2 * dim]
  kNhdKvSideBySide,  // [blocks, tokens, heads, 2 * dim]
  kHndKvPages,       // a page of that many tokens as it travels
};

struct PagedShape {
  Layout layout = Layout::kHndTwoTensors;
  int32_t block_tokens = 16;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  int32_t first_layer = 0;
  int32_t num_layers = 0;
};

// The shape that holds the whole cache of the ranks.
inline PagedShape whole(const FakeRanks& ranks, Layout layout = Layout::kHndTwoTensors,
                        int32_t block_tokens = 64) {
  const auto& manifest = ranks.manifest();
  return {.layout = layout,
          .block_tokens = block_tokens,
          .num_tokens = manifest.num_tokens,
          .num_kv_heads = manifest.layout.num_kv_heads,
          .num_layers = manifest.layout.num_layers};
}

class PagedCache {
 public:
  PagedCache(const FakeRanks& ranks, const PagedShape& shape);

  // Pages that this manifest does not have must stay untouched. It must outlive the cache.
  void expect_pages_of(const kvclient::Manifest& manifest) { manifest_ = &manifest; }
  // A pull into this cache's memory.
  kvclient::PullRequest request();
  // By layer, for a caller that keeps the memory elsewhere, too.
  std::span<std::vector<std::byte>> memory() { return layers_; }
  // "" if the memory holds what a pull must leave, and every other byte is untouched; otherwise the
  // first place that differs.
  std::string difference() const;
  std::string difference_of_layer(int32_t layer) const;
  bool untouched() const;

 private:
  struct Strides {
    int64_t block, head, token, v;  // strides in bytes; v: from K to V
  };
  Strides strides() const;
  std::vector<std::byte> expected(int32_t layer) const;

  const FakeRanks& ranks_;
  const PagedShape shape_;
  const kvclient::Manifest* manifest_ = nullptr;
  const int64_t row_bytes_;
  int64_t num_blocks_ = 0;
  std::vector<int32_t> block_ids_;
  std::vector<std::vector<std::byte>> layers_;
};

}  // namespace millrace::test
