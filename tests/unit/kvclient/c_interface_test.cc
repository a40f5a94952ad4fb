// SPDX-License-Identifier: Apache-2.0
// The C interface: what it reports about a manifest, pulls by it, events, and wrong calls.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <millrace/millrace_kv.h>

#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "comm/tcp/tcp_transport.h"
#include "common/float8.h"
#include "tests/unit/kvclient/fake_ranks.h"
#include "tests/unit/kvclient/paged_cache.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::Layout;
using test::PagedCache;
using ::testing::HasSubstr;

constexpr double kAmple = 60;

class CInterfaceTest : public testing::Test {
 protected:
  ~CInterfaceTest() override {
    mkv_manifest_destroy(manifest_);
    mkv_client_destroy(client_);
  }
  void serve(const FakeRanks::Options& options = {}, FakeRanks::Hook hook = {}) {
    ranks_ = std::make_unique<FakeRanks>(*transport_, options, std::move(hook));
    const auto json = to_json(ranks_->manifest());
    ASSERT_EQ(mkv_manifest_parse(json.data(), json.size(), &manifest_), MKV_OK) << mkv_last_error();
    ASSERT_EQ(mkv_client_create(nullptr, &client_), MKV_OK) << mkv_last_error();
  }
  std::unique_ptr<PagedCache> make_cache(Layout layout = Layout::kHndKvSideBySide) {
    const auto& manifest = ranks_->manifest();
    return std::make_unique<PagedCache>(
        *ranks_, test::PagedShape{.layout = layout,
                                  .block_tokens = 16,
                                  .num_tokens = manifest.num_tokens,
                                  .num_kv_heads = manifest.layout.num_kv_heads,
                                  .num_layers = manifest.layout.num_layers});
  }
  // A request for the whole cache into `cache`. What it points to lives in this fixture.
  mkv_pull_request request_for(PagedCache& cache) {
    const auto from = cache.request();
    blocks_ = from.block_ids;
    layers_.clear();
    for (const auto& layer : from.layers) {
      layers_.push_back(
          {layer.k, layer.v, layer.block_stride, layer.head_stride, layer.token_stride});
    }
    mkv_pull_request request{};
    request.struct_bytes = sizeof(request);
    request.num_layers = static_cast<int32_t>(layers_.size());
    request.num_kv_heads = from.num_kv_heads;
    request.dtype = MKV_FLOAT32;
    request.head_dim = from.head_dim;
    request.block_tokens = from.block_tokens;
    request.num_tokens = from.num_tokens;
    request.num_blocks = std::ssize(blocks_);
    request.block_ids = blocks_.data();
    request.layers = layers_.data();
    request.timeout_s = kAmple;
    return request;
  }

  const std::unique_ptr<comm::TcpTransport> transport_ =
      std::make_unique<comm::TcpTransport>(comm::TcpOptions{});
  std::unique_ptr<FakeRanks> ranks_;
  mkv_manifest* manifest_ = nullptr;
  mkv_client* client_ = nullptr;
  std::vector<int32_t> blocks_;
  std::vector<mkv_layer_destination> layers_;
};

TEST_F(CInterfaceTest, TellsWhatAManifestSays) {
  serve();
  mkv_manifest_info info{};
  info.struct_bytes = sizeof(info);
  ASSERT_EQ(mkv_manifest_get(manifest_, &info), MKV_OK);
  EXPECT_EQ(info.num_layers, 2);
  EXPECT_EQ(info.num_kv_heads, 4);
  EXPECT_EQ(info.head_dim, 16);
  EXPECT_EQ(info.dtype, MKV_FLOAT32);
  EXPECT_EQ(info.dtype_bytes, 4);
  EXPECT_EQ(info.page_tokens, 64);
  EXPECT_EQ(info.num_tokens, 700);
  EXPECT_EQ(info.num_pages, 11);
  EXPECT_EQ(info.page_bytes, 2 * 64 * 16 * 4);
  EXPECT_EQ(info.is_result, 1);
  EXPECT_EQ(info.first_token_id, 7);
  EXPECT_EQ(info.lease_ms, 60000);
  EXPECT_STREQ(info.request_id, "prompt-1");
  EXPECT_STREQ(info.lease_id, "lease-1");
  EXPECT_STREQ(info.epoch, "epoch-1");
  EXPECT_STREQ(info.coordinator_instance, "");  // ranks in a test
  ASSERT_EQ(info.num_shards, 4);
  mkv_shard_info shard{};
  shard.struct_bytes = sizeof(shard);
  ASSERT_EQ(mkv_manifest_shard(manifest_, 3, &shard), MKV_OK);
  EXPECT_EQ(shard.first_kv_head, 2);
  EXPECT_EQ(shard.num_kv_heads, 2);
  EXPECT_EQ(shard.num_tokens, 128 + 128 + 60);
  EXPECT_EQ(shard.address, ranks_->manifest().shards[3].address);
  int32_t token = 0;
  float logprob = 0;
  ASSERT_EQ(info.num_logprobs, 1);
  ASSERT_EQ(mkv_manifest_logprob(manifest_, 0, &token, &logprob), MKV_OK);
  EXPECT_EQ(token, 7);
  EXPECT_EQ(logprob, -0.5f);
}

TEST_F(CInterfaceTest, TellsWhichCoordinatorHandedTheManifestOut) {
  serve();
  Manifest named = ranks_->manifest();
  named.coordinator_instance = "5b0c6a2f";
  const std::string json = kvclient::to_json(named);
  mkv_manifest* manifest = nullptr;
  ASSERT_EQ(mkv_manifest_parse(json.data(), json.size(), &manifest), MKV_OK) << mkv_last_error();
  mkv_manifest_info info{};
  info.struct_bytes = sizeof(info);
  ASSERT_EQ(mkv_manifest_get(manifest, &info), MKV_OK);
  EXPECT_STREQ(info.coordinator_instance, "5b0c6a2f");
  mkv_manifest_destroy(manifest);
}

TEST_F(CInterfaceTest, ScalesOfHeadsAreToldByHead) {
  serve();
  Manifest float8 = ranks_->manifest();
  float8.version = 4;
  float8.layout.dtype = kFloat8KvName;
  const int32_t heads = float8.layout.num_kv_heads;
  std::vector<KvScale> scales(static_cast<size_t>(float8.layout.num_layers * heads));
  scales[static_cast<size_t>(heads + 1)] = {.k = 0.5F, .v = 3};
  float8.layout.scales = KvScales(scales, heads);
  const std::string json = to_json(float8);
  mkv_manifest* manifest = nullptr;
  ASSERT_EQ(mkv_manifest_parse(json.data(), json.size(), &manifest), MKV_OK) << mkv_last_error();
  float k = 0, v = 0;
  ASSERT_EQ(mkv_manifest_head_scales(manifest, 1, 1, &k, &v), MKV_OK);
  EXPECT_EQ(k, 0.5F);
  EXPECT_EQ(v, 3);
  ASSERT_EQ(mkv_manifest_head_scales(manifest, 1, 0, &k, &v), MKV_OK);
  EXPECT_EQ(k, 1);
  EXPECT_EQ(mkv_manifest_scales(manifest, 1, &k, &v), MKV_UNSUPPORTED);
  mkv_manifest_destroy(manifest);
}

// The ranks' bytes, taken as the codes of heads four times as wide.
TEST_F(CInterfaceTest, ACacheInEightBitFloatsComesAsItIsOrDecodedAndNotWithoutAWord) {
  serve();
  Manifest float8 = ranks_->manifest();
  float8.version = 3;
  float8.layout.dtype = kFloat8KvName;
  float8.layout.head_dim *= 4;
  float8.layout.scales = {{.k = 0.5F, .v = 2}, {.k = 0.037F, .v = 1}};
  const std::string json = to_json(float8);
  mkv_manifest* manifest = nullptr;
  ASSERT_EQ(mkv_manifest_parse(json.data(), json.size(), &manifest), MKV_OK) << mkv_last_error();
  mkv_manifest_info info{};
  info.struct_bytes = sizeof(info);
  ASSERT_EQ(mkv_manifest_get(manifest, &info), MKV_OK);
  EXPECT_EQ(info.dtype, MKV_FLOAT8_E4M3);
  EXPECT_EQ(info.dtype_bytes, 1);
  float k = 0, v = 0;
  ASSERT_EQ(mkv_manifest_scales(manifest, 1, &k, &v), MKV_OK);
  EXPECT_EQ(k, 0.037F);
  EXPECT_EQ(v, 1);
  EXPECT_EQ(mkv_manifest_scales(manifest, 2, &k, &v), MKV_INVALID_ARGUMENT);
  ASSERT_EQ(mkv_manifest_head_scales(manifest, 0, info.num_kv_heads - 1, &k, &v), MKV_OK);
  EXPECT_EQ(k, 0.5F);
  EXPECT_EQ(v, 2);
  EXPECT_EQ(mkv_manifest_head_scales(manifest, 0, info.num_kv_heads, &k, &v), MKV_INVALID_ARGUMENT);

  const auto cache = make_cache(Layout::kHndTwoTensors);
  auto request = request_for(*cache);
  request.head_dim = info.head_dim;
  mkv_pull* pull = nullptr;
  EXPECT_EQ(mkv_pull_start(client_, manifest, &request, &pull), MKV_UNSUPPORTED);
  EXPECT_THAT(mkv_last_error(), testing::HasSubstr("float8_e4m3, its destination float32"));
  request.dtype = MKV_FLOAT8_E4M3;
  ASSERT_EQ(mkv_pull_start(client_, manifest, &request, &pull), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK);
  mkv_pull_destroy(pull);
  EXPECT_EQ(cache->difference(), "");

  // One page of layer 0, head 0, as float32.
  std::vector<float> rows(static_cast<size_t>(2 * 64 * info.head_dim));
  const int64_t row = info.head_dim * 4;
  const mkv_layer_destination to{rows.data(), rows.data() + 64 * info.head_dim, 64 * row, row, row};
  const int32_t block = 0;
  request.layers = &to;
  request.num_layers = 1;
  request.num_kv_heads = 1;
  request.block_tokens = 64;
  request.num_tokens = 64;
  request.num_blocks = 1;
  request.block_ids = &block;
  request.dtype = MKV_FLOAT32;
  request.decode_float8 = 1;
  ASSERT_EQ(mkv_pull_start(client_, manifest, &request, &pull), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK);
  mkv_pull_destroy(pull);
  const auto codes = ranks_->page(0, 0, 0);
  for (size_t i = 0; i < codes.size(); ++i) {
    const float expected =
        to_float(Float8{static_cast<uint8_t>(codes[i])}) * (i < codes.size() / 2 ? 0.5F : 2.0F);
    ASSERT_TRUE(rows[i] == expected || std::isnan(expected)) << i;
  }
  mkv_manifest_destroy(manifest);
}

TEST_F(CInterfaceTest, AManifestGoesThroughJsonToAnotherProcess) {
  serve();
  std::string json(mkv_manifest_json(manifest_, nullptr, 0), '\0');
  EXPECT_EQ(mkv_manifest_json(manifest_, json.data(), json.size() + 1), json.size());
  mkv_manifest* again = nullptr;
  ASSERT_EQ(mkv_manifest_parse(json.data(), json.size(), &again), MKV_OK);
  EXPECT_EQ(mkv_manifest_json(again, nullptr, 0), json.size());
  mkv_manifest_destroy(again);
}

TEST_F(CInterfaceTest, PullsIntoBlocksAndCounts) {
  serve();
  const auto cache = make_cache();
  const auto request = request_for(*cache);
  mkv_pull* pull = nullptr;
  ASSERT_EQ(mkv_pull_start(client_, manifest_, &request, &pull), MKV_OK) << mkv_last_error();
  blocks_.clear();  // copied
  for (int32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(mkv_pull_wait_layer(pull, layer, kAmple), MKV_OK) << mkv_last_error();
  }
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK);
  EXPECT_EQ(cache->difference(), "");
  mkv_pull_stats stats{};
  stats.struct_bytes = sizeof(stats);
  ASSERT_EQ(mkv_pull_get_stats(pull, &stats), MKV_OK);
  EXPECT_EQ(stats.status, MKV_OK);
  EXPECT_EQ(stats.layers_done, 2);
  EXPECT_EQ(stats.pages_done, 2 * 4 * 11);
  EXPECT_EQ(stats.pages_total, 2 * 4 * 11);
  EXPECT_EQ(stats.bytes, stats.pages_done * 2 * 64 * 16 * 4);
  EXPECT_EQ(stats.bytes_tcp, stats.bytes);
  EXPECT_EQ(stats.pages_host, stats.pages_done);
  EXPECT_EQ(mkv_pull_wait_layer(pull, 2, 0), MKV_INVALID_ARGUMENT);
  mkv_pull_destroy(pull);
}

TEST_F(CInterfaceTest, ACacheThatIsKeptInPartIsTakenOnlyByWhoSaysSo) {
  serve();
  auto part = ranks_->manifest();
  part.version = 2;
  part.kept_pages = KeptPages(2, 4, 11);
  for (int32_t head = 0; head < 8; ++head) part.kept_pages->keep(head / 4, head % 4, 10);
  const auto json = to_json(part);
  mkv_manifest* manifest = nullptr;
  ASSERT_EQ(mkv_manifest_parse(json.data(), json.size(), &manifest), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_manifest_has_page(manifest, 1, 3, 10), 1);
  EXPECT_EQ(mkv_manifest_has_page(manifest, 1, 3, 9), 0);
  EXPECT_EQ(mkv_manifest_has_page(manifest, 2, 3, 10), 0);
  EXPECT_EQ(mkv_manifest_has_page(manifest_, 1, 3, 9), 1);
  EXPECT_EQ(mkv_manifest_has_page(manifest_, 1, 3, 11), 0);
  const auto cache = make_cache();
  auto request = request_for(*cache);
  mkv_pull* pull = nullptr;
  EXPECT_EQ(mkv_pull_start(client_, manifest, &request, &pull), MKV_UNSUPPORTED);
  EXPECT_NE(std::string(mkv_last_error()).find("kept in part (kv_budget)"), std::string::npos);
  EXPECT_TRUE(cache->untouched());
  request.takes_part = 1;
  ASSERT_EQ(mkv_pull_start(client_, manifest, &request, &pull), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK) << mkv_last_error();
  mkv_pull_stats stats{};
  stats.struct_bytes = sizeof(stats);
  ASSERT_EQ(mkv_pull_get_stats(pull, &stats), MKV_OK);
  EXPECT_EQ(stats.pages_done, 8);
  mkv_pull_destroy(pull);
  mkv_manifest_destroy(manifest);
}

TEST_F(CInterfaceTest, PullsPagesByName) {
  serve();
  const size_t page_bytes = 2 * 64 * 16 * 4;
  std::vector<std::vector<std::byte>> bytes(3, std::vector<std::byte>(page_bytes));
  std::vector<mkv_named_page> pages = {
      {0, 3, 7, bytes[0].data()}, {1, 0, 0, bytes[1].data()}, {1, 0, 10, bytes[2].data()}};
  mkv_page_request request{};
  request.struct_bytes = sizeof(request);
  request.dtype = MKV_FLOAT32;
  request.num_pages = std::ssize(pages);
  request.pages = pages.data();
  request.timeout_s = kAmple;
  mkv_pull* pull = nullptr;
  ASSERT_EQ(mkv_pull_start_pages(client_, manifest_, &request, &pull), MKV_OK) << mkv_last_error();
  ASSERT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK) << mkv_last_error();
  mkv_pull_destroy(pull);
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(bytes[i], ranks_->page(pages[i].layer, pages[i].kv_head, pages[i].page)) << i;
  }
  std::swap(pages[0], pages[1]);
  EXPECT_EQ(mkv_pull_start_pages(client_, manifest_, &request, &pull), MKV_INVALID_ARGUMENT);
  request.num_pages = 0;
  EXPECT_EQ(mkv_pull_start_pages(client_, manifest_, &request, &pull), MKV_INVALID_ARGUMENT);
  EXPECT_THAT(mkv_last_error(), HasSubstr("0 pages"));
}

TEST_F(CInterfaceTest, EventsFeedAPullLayerByLayer) {
  std::atomic<int> num_layers = 0;
  serve({}, [&](const protocol::PageRequest& request) -> Result<void> {
    if (static_cast<int>(request.layer()) < num_layers) return {};
    return Error(Errc::kUnavailable, "early");
  });
  mkv_feed* feed = nullptr;
  ASSERT_EQ(mkv_feed_create(&feed), MKV_OK);
  mkv_manifest* manifest = nullptr;
  EXPECT_EQ(mkv_feed_wait_manifest(feed, 0, &manifest), MKV_PENDING);
  const auto write = [&](const std::string& text) {
    EXPECT_EQ(mkv_feed_write(feed, text.data(), text.size()), MKV_OK) << mkv_last_error();
  };
  const auto json = to_json(ranks_->manifest());
  write("event: queued\ndata: {\"request_id\":\"prompt-1\"}\n\nevent: mani");
  write("fest\ndata: {\"manifest\":" + json + "}\n\n");
  ASSERT_EQ(mkv_feed_wait_manifest(feed, kAmple, &manifest), MKV_OK) << mkv_last_error();

  const auto cache = make_cache();
  auto request = request_for(*cache);
  request.feed = feed;
  mkv_pull* pull = nullptr;
  ASSERT_EQ(mkv_pull_start(client_, manifest, &request, &pull), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait_layer(pull, 0, 0), MKV_PENDING);
  num_layers = 1;
  write("event: layer\ndata: {\"layer\":0}\n\n");
  EXPECT_EQ(mkv_feed_layers_ready(feed), 1);
  EXPECT_EQ(mkv_pull_wait_layer(pull, 0, kAmple), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait(pull, 0), MKV_PENDING);
  num_layers = 2;
  EXPECT_EQ(mkv_feed_set_layers_ready(feed, 2), MKV_OK);
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK) << mkv_last_error();
  EXPECT_EQ(cache->difference(), "");

  EXPECT_EQ(mkv_feed_fail(feed, MKV_PEER_LOST, "broke off"), MKV_OK);
  EXPECT_EQ(mkv_feed_write(feed, "x", 1), MKV_PEER_LOST);
  mkv_manifest* result = nullptr;
  EXPECT_EQ(mkv_feed_wait_result(feed, kAmple, &result), MKV_PEER_LOST);
  EXPECT_THAT(mkv_last_error(), HasSubstr("broke off"));
  mkv_pull_destroy(pull);
  mkv_feed_destroy(feed);
  mkv_manifest_destroy(manifest);
}

TEST_F(CInterfaceTest, PullsInOrderOfCriticality) {
  serve();
  const auto cache = make_cache();
  auto request = request_for(*cache);
  request.order = MKV_ORDER_CRITICALITY;
  request.hot_share = 0.5;
  mkv_pull* pull = nullptr;
  ASSERT_EQ(mkv_pull_start(client_, manifest_, &request, &pull), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait_hot_layer(pull, 1, kAmple), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait_hot_layer(pull, 2, 0), MKV_INVALID_ARGUMENT);
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK) << mkv_last_error();
  EXPECT_EQ(cache->difference(), "");
  mkv_pull_stats stats{};
  stats.struct_bytes = sizeof(stats);
  ASSERT_EQ(mkv_pull_get_stats(pull, &stats), MKV_OK);
  EXPECT_GT(stats.hot_pages_done, 0);
  EXPECT_EQ(stats.hot_pages_done, stats.hot_pages_total);
  EXPECT_LT(stats.hot_pages_done, stats.pages_total);
  EXPECT_EQ(stats.hot_layers_done, 2);
  EXPECT_EQ(stats.score_bytes, 4 * stats.pages_total);
  EXPECT_GT(stats.hot_seconds, 0);
  mkv_pull_destroy(pull);
}

TEST_F(CInterfaceTest, StructuresOfTheFirstVersionAreTakenAndNothingBehindThemIsTouched) {
  serve();
  const auto cache = make_cache();
  auto request = request_for(*cache);
  request.struct_bytes = offsetof(mkv_pull_request, order);
  request.order = 99;  // what lies behind the caller's structure
  mkv_pull* pull = nullptr;
  ASSERT_EQ(mkv_pull_start(client_, manifest_, &request, &pull), MKV_OK) << mkv_last_error();
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_OK) << mkv_last_error();
  EXPECT_EQ(cache->difference(), "");
  mkv_manifest_info info{};
  info.struct_bytes = offsetof(mkv_manifest_info, coordinator_instance);
  info.coordinator_instance = "behind";
  ASSERT_EQ(mkv_manifest_get(manifest_, &info), MKV_OK) << mkv_last_error();
  EXPECT_EQ(info.num_layers, 2);
  EXPECT_STREQ(info.coordinator_instance, "behind");
  mkv_pull_stats stats{};
  stats.struct_bytes = offsetof(mkv_pull_stats, hot_pages_done);
  stats.hot_pages_done = -7;
  ASSERT_EQ(mkv_pull_get_stats(pull, &stats), MKV_OK);
  EXPECT_EQ(stats.pages_done, stats.pages_total);
  EXPECT_EQ(stats.hot_pages_done, -7);
  mkv_pull_destroy(pull);
}

TEST_F(CInterfaceTest, ReadsScoresAndDigests) {
  serve();
  std::vector<float> scores(2 * 11);
  ASSERT_EQ(mkv_scores_get(client_, manifest_, 1, 1, 2, 2, scores.data(), 22, kAmple), MKV_OK)
      << mkv_last_error();
  auto expected = ranks_->scores(1, 2);
  const auto second = ranks_->scores(1, 3);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(scores, expected);
  EXPECT_EQ(mkv_scores_get(client_, manifest_, 1, 1, 2, 2, scores.data(), 21, kAmple),
            MKV_INVALID_ARGUMENT);
  EXPECT_THAT(mkv_last_error(), HasSubstr("22 floats for an array of 21"));
  EXPECT_EQ(mkv_scores_get(client_, manifest_, 2, 1, 0, 1, scores.data(), 11, kAmple),
            MKV_INVALID_ARGUMENT);
  EXPECT_EQ(mkv_scores_get(client_, manifest_, 1, 1, 2, 2, nullptr, 22, kAmple),
            MKV_INVALID_ARGUMENT);

  std::vector<float> digests(2 * 3 * 16);
  ASSERT_EQ(mkv_digests_get(client_, manifest_, 1, 3, 1, 2, digests.data(), 96, kAmple), MKV_OK)
      << mkv_last_error();
  for (int64_t page = 1; page < 3; ++page) {
    const auto wanted = ranks_->digest(1, 3, page);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), digests.begin() + (page - 1) * 48));
  }
  EXPECT_EQ(mkv_digests_get(client_, manifest_, 1, 3, 10, 2, digests.data(), 96, kAmple),
            MKV_INVALID_ARGUMENT);
}

TEST_F(CInterfaceTest, CancelsWhileARankIsSilentAndHandlesGoInAnyOrder) {
  std::mutex mutex;
  std::condition_variable changed;
  bool asked = false, released = false;
  serve({}, [&](const protocol::PageRequest&) -> Result<void> {
    std::unique_lock lock(mutex);
    asked = true;
    changed.notify_all();
    changed.wait(lock, [&] { return released; });
    return {};
  });
  const auto cache = make_cache();
  const auto request = request_for(*cache);
  mkv_pull* pull = nullptr;
  ASSERT_EQ(mkv_pull_start(client_, manifest_, &request, &pull), MKV_OK);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return asked; });
  }
  mkv_pull_cancel(pull);
  EXPECT_EQ(mkv_pull_wait(pull, kAmple), MKV_CANCELLED);
  EXPECT_TRUE(cache->untouched());
  mkv_client_destroy(std::exchange(client_, nullptr));
  mkv_manifest_destroy(std::exchange(manifest_, nullptr));
  EXPECT_EQ(mkv_pull_wait(pull, 0), MKV_CANCELLED);
  mkv_pull_destroy(pull);
  {
    const std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
  }
  ranks_.reset();
}

TEST_F(CInterfaceTest, CallsThatAreWrongSayWhatIsWrong) {
  serve();
  mkv_manifest* none = nullptr;
  EXPECT_EQ(mkv_manifest_parse("{", 1, &none), MKV_INVALID_ARGUMENT);
  EXPECT_EQ(mkv_manifest_parse(nullptr, 0, &none), MKV_INVALID_ARGUMENT);
  auto manifest = ranks_->manifest();
  manifest.version = 5;
  const auto newer = to_json(manifest);
  EXPECT_EQ(mkv_manifest_parse(newer.data(), newer.size(), &none), MKV_UNSUPPORTED);
  EXPECT_THAT(mkv_last_error(), HasSubstr("version is 5"));
  EXPECT_EQ(none, nullptr);
  mkv_manifest_info info{};
  EXPECT_EQ(mkv_manifest_get(manifest_, &info), MKV_INVALID_ARGUMENT);
  EXPECT_THAT(mkv_last_error(), HasSubstr("struct_bytes is 0"));
  mkv_client_options options{};
  options.struct_bytes = sizeof(options);
  options.transport = 9;
  mkv_client* client = nullptr;
  EXPECT_EQ(mkv_client_create(&options, &client), MKV_INVALID_ARGUMENT);

  const auto cache = make_cache();
  const auto expect = [&](mkv_status status, const std::function<void(mkv_pull_request&)>& spoil) {
    auto request = request_for(*cache);
    spoil(request);
    mkv_pull* pull = nullptr;
    EXPECT_EQ(mkv_pull_start(client_, manifest_, &request, &pull), status) << mkv_last_error();
    EXPECT_EQ(pull, nullptr);
  };
  expect(MKV_INVALID_ARGUMENT, [](auto& r) { r.struct_bytes = 8; });
  expect(MKV_INVALID_ARGUMENT, [](auto& r) { r.layers = nullptr; });
  expect(MKV_INVALID_ARGUMENT, [](auto& r) { r.num_blocks = -1; });
  expect(MKV_INVALID_ARGUMENT, [](auto& r) { r.num_blocks = 1; });
  expect(MKV_INVALID_ARGUMENT, [](auto& r) { r.timeout_s = 0; });
  expect(MKV_INVALID_ARGUMENT,
         [](auto& r) { r.timeout_s = std::numeric_limits<double>::quiet_NaN(); });
  expect(MKV_UNSUPPORTED, [](auto& r) { r.dtype = MKV_BFLOAT16; });
  expect(MKV_UNSUPPORTED, [](auto& r) { r.dtype = 17; });
  expect(MKV_UNSUPPORTED, [](auto& r) { r.order = 2; });
  expect(MKV_INVALID_ARGUMENT, [](auto& r) { r.hot_share = 1.5; });
}

TEST(CInterface, NamesItsStatusesAndItsVersion) {
  EXPECT_EQ(mkv_version(), uint32_t{MKV_VERSION_MAJOR} << 16 | MKV_VERSION_MINOR);
  EXPECT_STREQ(mkv_status_name(MKV_OK), "ok");
  EXPECT_STREQ(mkv_status_name(MKV_PENDING), "pending");
  EXPECT_STREQ(mkv_status_name(MKV_PEER_LOST), "peer_lost");
  EXPECT_STREQ(mkv_status_name(99), "unknown");
}

}  // namespace
}  // namespace millrace::kvclient
