// SPDX-License-Identifier: Apache-2.0
// Which shard serves which page, compared with the ranges of the manifest read one by one.

#include "kvclient/manifest/shard_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::kvclient {
namespace {

using ::testing::ElementsAre;

Manifest manifest_of(int64_t num_tokens) {
  Manifest manifest;
  manifest.num_tokens = num_tokens;
  manifest.layout.page_tokens = 64;
  manifest.layout.num_kv_heads = 4;
  return manifest;
}

Shard& add_shard(Manifest& manifest, int32_t first_kv_head, int32_t num_kv_heads) {
  auto& shard = manifest.shards.emplace_back();
  shard.first_kv_head = first_kv_head;
  shard.num_kv_heads = num_kv_heads;
  return shard;
}

void add_range(Shard& shard, int64_t begin, int64_t end) {
  shard.token_ranges.push_back({begin, end});
}

TEST(ShardSpans, FindsTheOwnerOfEveryPageOfFourMillionTokens) {
  // Stripes of 512 tokens over 4 ranks in snake order; kv heads 2 and 3 are on shards 4 to 7. The
  // last stripe is short.
  constexpr int64_t kTokens = (1u << 22) - 100;
  constexpr int kSnake[] = {0, 1, 2, 3, 3, 2, 1, 0};
  auto manifest = manifest_of(kTokens);
  for (const int32_t head : {0, 2}) {
    for (int rank = 0; rank < 4; ++rank) add_shard(manifest, head, 2);
  }
  std::vector<int> owner_by_page;
  for (int64_t begin = 0, stripe = 0; begin < kTokens; begin += 512, ++stripe) {
    const int64_t end = std::min(begin + 512, kTokens);
    const int owner = kSnake[stripe % 8];
    add_range(manifest.shards[static_cast<size_t>(owner)], begin, end);
    add_range(manifest.shards[static_cast<size_t>(4 + owner)], begin, end);
    for (int64_t token = begin; token < end; token += 64) owner_by_page.push_back(owner);
  }
  const ShardSpans low(manifest, 1), high(manifest, 2);
  for (int64_t page = 0; page < std::ssize(owner_by_page); ++page) {
    const int owner = owner_by_page[static_cast<size_t>(page)];
    ASSERT_NE(low.find(page), nullptr) << page;
    ASSERT_EQ(low.find(page)->shard, owner) << page;
    ASSERT_EQ(high.find(page)->shard, 4 + owner) << page;
  }
  EXPECT_EQ(low.find(std::ssize(owner_by_page)), nullptr);
  // A rank's two stripes at each turn of the snake are one span.
  EXPECT_EQ(low.find(3 * 8)->end_page - low.find(3 * 8)->first_page, 16);
}

TEST(ShardSpans, APageThatNobodyHoldsIsNotFound) {
  auto manifest = manifest_of(1000);
  auto& shard = add_shard(manifest, 1, 2);
  add_range(shard, 128, 256);
  add_range(shard, 512, 1000);
  const ShardSpans spans(manifest, 1);
  for (const int64_t page : {0, 1, 4, 7, 16}) EXPECT_EQ(spans.find(page), nullptr) << page;
  for (const int64_t page : {2, 3, 8, 15}) EXPECT_NE(spans.find(page), nullptr) << page;
  for (const int32_t head : {0, 3}) {
    EXPECT_TRUE(ShardSpans(manifest, head).spans().empty()) << head;
  }
}

TEST(ShardSpans, OfTwoShardsWithAPageTheOneThatBeginsFirstServesIt) {
  auto manifest = manifest_of(640);
  add_range(add_shard(manifest, 0, 4), 256, 640);
  add_range(add_shard(manifest, 0, 4), 0, 384);
  add_range(add_shard(manifest, 0, 4), 64, 128);
  EXPECT_THAT(ShardSpans(manifest, 0).spans(),
              ElementsAre(ShardSpan{1, 0, 6}, ShardSpan{0, 6, 10}));
}

}  // namespace
}  // namespace millrace::kvclient
