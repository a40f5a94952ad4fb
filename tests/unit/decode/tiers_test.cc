// SPDX-License-Identifier: Apache-2.0
// A trained model's cache on a rank with too little memory for it: what lies in memory, what on
// disk, and what a pull in order of criticality reads. Scores come over the wire; the test works
// out which pages should be in memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "comm/local/local_transport.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "kvclient/pull_client.h"
#include "tests/support/needle_prompt.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace {
namespace {

using PageId = std::tuple<int32_t, int32_t, int64_t>;  // layer, kv head, page

constexpr int32_t kLayers = 5;
constexpr int32_t kHeads = 2;
constexpr int64_t kPages = 32;
// All pages of layers 0 to 2, and in other layers each head's first page and last two.
constexpr int64_t kForced = 3 * kHeads * kPages + 2 * kHeads * 3;
constexpr int64_t kHostPages = kForced + 60;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class TiersTest : public ::testing::Test {
 protected:
  TiersTest() {
    while (served_.store(0).tend(Deadline::after(Duration::zero()))) {
    }
  }

  // In layers 3 and 4, the best pages of each head until they and the forced ones hold 0.95.
  std::set<PageId> pages_with_mass() {
    kvclient::KvClient client(transport_, manifest_, {});
    const auto scores = client.pull_scores(3, 2, 0, kHeads, ample());
    MR_CHECK(scores.ok(), "{}", scores.error().to_string());
    std::set<PageId> hot;
    for (int32_t row = 0; row < 2 * kHeads; ++row) {
      const float* score = scores->data() + row * kPages;
      const double total = std::accumulate(score, score + kPages, 0.0);
      double held = score[0] + score[kPages - 2] + score[kPages - 1];
      std::vector<int64_t> others(kPages - 3);
      std::iota(others.begin(), others.end(), int64_t{1});
      std::stable_sort(others.begin(), others.end(),
                       [score](int64_t a, int64_t b) { return score[a] > score[b]; });
      for (const int64_t page : others) {
        if (held >= 0.95 * total) break;
        held += score[page];
        hot.emplace(3 + row / kHeads, row % kHeads, page);
      }
    }
    return hot;
  }
  Tier tier_of(kvclient::KvClient& client, const PageId& page) {
    std::vector<std::byte> bytes(static_cast<size_t>(manifest_.page_bytes()));
    const auto& [layer, head, number] = page;
    const auto pulled = client.pull(layer, head, number, 1, bytes, ample());
    MR_CHECK(pulled.ok(), "{}", pulled.error().to_string());
    return pulled->front().tier;
  }

  comm::LocalTransport transport_;
  test::ServedPrompt served_{
      transport_, Clock::steady(),
      test::ServedPrompt::Options{
          .model_directory = MILLRACE_SOURCE_DIR "/tests/models/fixture",
          .grid = {1, 1},
          .tokens = testing::make_needle_prompt({.tokens = kPages * 64, .seed = 3}).token_ids,
          .device_pages = 0,
          .host_pages = kHostPages}};
  const kvclient::Manifest manifest_ = kvclient::from_protocol(served_.manifest());
};

TEST_F(TiersTest, PagesThatCarryTheMassAreInMemoryAndOthersOnDisk) {
  const auto hot = pages_with_mass();
  // Otherwise there is nothing to choose.
  ASSERT_GT(hot.size(), 4u);
  ASSERT_LE(std::ssize(hot), kHostPages - kForced);
  kvclient::KvClient client(transport_, manifest_, {});
  int64_t in_memory = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int64_t page = 0; page < kPages; ++page) {
        const Tier tier = tier_of(client, {layer, head, page});
        in_memory += tier == Tier::kHost;
        const bool forced = layer < 3 || page == 0 || page >= kPages - 2;
        if (forced || hot.contains({layer, head, page})) {
          EXPECT_EQ(tier, Tier::kHost) << layer << " " << head << " " << page;
        }
      }
    }
  }
  EXPECT_LE(in_memory, kHostPages);
  EXPECT_GT(kLayers * kHeads * kPages, in_memory);
  EXPECT_GT(served_.store(0).stats().moves[Tier::kHost][Tier::kDisk], 0);
}

// The hot pages come from memory alone, and the bytes equal those of a pull by position.
TEST_F(TiersTest, APullInOrderOfCriticalityReadsTheDiskForTheRest) {
  kvclient::PullClient client(transport_, {.num_threads = 1});
  const int64_t row = manifest_.layout.head_dim * manifest_.element_bytes();
  const int64_t layer_bytes = 2 * kHeads * kPages * 64 * row;
  const auto pull = [&](std::vector<std::byte>& memory, kvclient::PullOrder order) {
    memory.assign(static_cast<size_t>(kLayers * layer_bytes), std::byte{});
    kvclient::PullRequest request{.num_kv_heads = kHeads,
                                  .dtype = find_dtype(manifest_.layout.dtype).value(),
                                  .head_dim = manifest_.layout.head_dim,
                                  .num_tokens = kPages * 64,
                                  .block_ids = {},
                                  .layers = {},
                                  .order = order};
    for (int32_t block = 0; block < kPages; ++block) request.block_ids.push_back(block);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      auto* k = memory.data() + layer * layer_bytes;
      request.layers.push_back({.k = k,
                                .v = k + layer_bytes / 2,
                                .block_stride = 64 * row,
                                .head_stride = kPages * 64 * row,
                                .token_stride = row});
    }
    auto started = client.start(manifest_, std::move(request));
    MR_CHECK(started.ok(), "{}", started.error().to_string());
    MR_CHECK((*started)->wait(ample())->ok(), "the pull failed");
    return (*started)->stats();
  };
  std::vector<std::byte> hot_first, by_position;
  const auto stats = pull(hot_first, kvclient::PullOrder::kCriticality);
  EXPECT_LT(stats.hot_pages, stats.pages);
  EXPECT_GT(stats.pages_by_tier[Tier::kDisk], 0);
  pull(by_position, kvclient::PullOrder::kPosition);
  EXPECT_TRUE(hot_first == by_position);
}

}  // namespace
}  // namespace millrace
