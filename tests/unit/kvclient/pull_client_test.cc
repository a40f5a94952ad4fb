// SPDX-License-Identifier: Apache-2.0
// What a pull leaves in an engine's blocks, and how it ends when something goes wrong.

#include "kvclient/pull_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <mutex>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "tests/unit/kvclient/fake_ranks.h"
#include "tests/unit/kvclient/paged_cache.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::Layout;
using test::PagedCache;
using test::PagedShape;
using test::whole;
using ::testing::HasSubstr;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}
Deadline past() {
  return Deadline::after(Duration::zero());
}

Errc end_of(Pull& pull) {
  const auto end = pull.wait(ample());
  MR_CHECK(end.has_value() && !end->ok(), "the pull did not fail");
  return end->error().code;
}

void expect_pulled(PullClient& client, const FakeRanks& ranks, const PagedShape& shape) {
  PagedCache cache(ranks, shape);
  auto pull = client.start(ranks.manifest(), cache.request());
  ASSERT_TRUE(pull.ok()) << pull.error().to_string();
  const auto end = (*pull)->wait(ample());
  ASSERT_TRUE(end.has_value());
  ASSERT_TRUE(end->ok()) << end->error().to_string();
  EXPECT_EQ(cache.difference(), "");
  EXPECT_EQ((*pull)->stats().pages, (*pull)->num_pages());
  EXPECT_EQ((*pull)->progress().layers_complete, shape.num_layers);
}

class PullLayoutTest : public testing::TestWithParam<std::tuple<Layout, int32_t, DType>> {};

TEST_P(PullLayoutTest, EveryRowLiesWhereTheStridesSayAndNothingBesideIt) {
  const auto [layout, block_tokens, dtype] = GetParam();
  comm::LocalTransport transport;
  // Rows of 64 and 128 bytes: runs below and above the limit for landing in place.
  const FakeRanks ranks(transport, {.head_dim = 32, .dtype = dtype});
  PullClient client(transport, {.num_threads = 3, .pages_per_request = 3});
  expect_pulled(client, ranks, whole(ranks, layout, block_tokens));
  auto part = whole(ranks, layout, block_tokens);
  part.first_layer = 1;
  part.num_layers = 1;
  part.first_kv_head = 1;
  part.num_kv_heads = 2;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1},
                                     {64, 128},
                                     {63, 2},
                                     {100, 333},
                                     {block_tokens, 600 - block_tokens},
                                     {699, 1}}) {
    SCOPED_TRACE(fmt::format("tokens {} + {}", first, count));
    part.first_token = first;
    part.num_tokens = count;
    expect_pulled(client, ranks, part);
  }
}

// Pages are checked, and copied if they must be, while later ones are on their way.
class PullOverTcpTest : public testing::TestWithParam<Layout> {
 protected:
  comm::TcpTransport transport_{comm::TcpOptions{}};
};

TEST_P(PullOverTcpTest, PagesLandWhereTheyBelong) {
  // Rows and pages as of real models: replies of 2 MiB are read in parts.
  const FakeRanks ranks(transport_, {.head_dim = 128, .num_tokens = 9000, .tp = 1});
  PullClient client(transport_, {.num_threads = 2});
  expect_pulled(client, ranks, whole(ranks, GetParam(), 16));
}

TEST_P(PullOverTcpTest, PagesThatLandWrongAreFetchedAgain) {
  std::atomic<int> num_spoiled = 0;
  const FakeRanks ranks(
      transport_,
      {.head_dim = 128, .num_tokens = 3000, .spoiled = [&](const protocol::PageRequest& request) {
         return request.num_pages() > 1 && num_spoiled++ < 5;
       }});
  PullClient client(transport_, {.num_threads = 2, .pages_per_request = 5});
  PagedCache cache(ranks, whole(ranks, GetParam(), 16));
  const auto pull = *client.start(ranks.manifest(), cache.request());
  const auto end = pull->wait(ample());
  ASSERT_TRUE(end->ok()) << end->error().to_string();
  EXPECT_EQ(cache.difference(), "");
  EXPECT_EQ(pull->stats().corrupt_pages, 5);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PullOverTcpTest,
                         testing::Values(Layout::kHndKvPages, Layout::kHndTwoTensors,
                                         Layout::kNhdTwoTensors));

INSTANTIATE_TEST_SUITE_P(
    Layouts, PullLayoutTest,
    testing::Combine(testing::Values(Layout::kNhdTwoTensors, Layout::kNhdOneTensor,
                                     Layout::kHndTwoTensors, Layout::kHndKvSideBySide,
                                     Layout::kNhdKvSideBySide, Layout::kHndKvPages),
                     testing::Values(16, 32, 64, 128),
                     testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16)));

class PullClientTest : public testing::Test {
 protected:
  comm::LocalTransport transport_;
};

TEST_F(PullClientTest, APageThatArrivesWrongIsFetchedAgain) {
  const FakeRanks ranks(transport_, {});
  for (const Layout layout : {Layout::kHndKvPages, Layout::kNhdTwoTensors}) {
    comm::FaultTransport faulty(
        transport_, {{{.kind = comm::FaultKind::kFlipByte, .first_call = 3, .byte = 9000},
                      {.kind = comm::FaultKind::kFlipByte, .first_call = 7, .byte = 77}}});
    PullClient client(faulty, {.num_threads = 2});
    PagedCache cache(ranks, whole(ranks, layout));
    const auto pull = *client.start(ranks.manifest(), cache.request());
    ASSERT_TRUE(pull->wait(ample())->ok());
    EXPECT_EQ(cache.difference(), "");
    EXPECT_EQ(pull->stats().corrupt_pages, 2);
    EXPECT_EQ(pull->stats().bytes, (pull->num_pages() + 2) * ranks.manifest().page_bytes());
  }
}

TEST_F(PullClientTest, APageThatArrivesWrongEveryTimeFailsThePull) {
  const FakeRanks ranks(transport_, {});
  comm::FaultTransport faulty(
      transport_,
      {{{.kind = comm::FaultKind::kFlipByte, .first_call = 5, .num_calls = 1000, .byte = 1}}});
  PullClient client(faulty, {.num_threads = 2});
  PagedCache cache(ranks, whole(ranks));
  const auto pull = *client.start(ranks.manifest(), cache.request());
  const auto end = pull->wait(ample());
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->error().code, Errc::kCorrupt);
  EXPECT_THAT(end->error().message, HasSubstr("after 3 fetches"));
}

TEST_F(PullClientTest, ALostRankFailsThePullAndTheClientStaysGood) {
  FakeRanks ranks(transport_, {});
  PullClient client(transport_, {.num_threads = 2});
  FakeRanks lost(transport_, {});
  lost.lose_rank(1);
  PagedCache cache(lost, whole(lost));
  const auto pull = *client.start(lost.manifest(), cache.request());
  EXPECT_EQ(end_of(*pull), Errc::kPeerLost);
  expect_pulled(client, ranks, whole(ranks));
}

TEST_F(PullClientTest, AConnectionThatBrokeSinceTheLastPullIsMadeAgain) {
  const FakeRanks ranks(transport_, {.tp = 1, .cp = 1});
  comm::FaultTransport faulty(transport_,
                              {{{.kind = comm::FaultKind::kLosePeer, .first_call = 8}}});
  PullClient client(faulty, {.num_threads = 1});
  for (int i = 0; i < 2; ++i) expect_pulled(client, ranks, whole(ranks));
  EXPECT_EQ(faulty.num_calls(), 17);  // 8 a pull, and the one that was lost
}

TEST_F(PullClientTest, OnlyConnectionsThatWereGoodOnceAreMadeAgain) {
  const FakeRanks ranks(transport_, {.tp = 1, .cp = 1});
  comm::FaultTransport faulty(transport_,
                              {{{.kind = comm::FaultKind::kLosePeer, .first_call = 0}}});
  PullClient client(faulty, {.num_threads = 1});
  PagedCache cache(ranks, whole(ranks));
  const auto pull = *client.start(ranks.manifest(), cache.request());
  EXPECT_EQ(end_of(*pull), Errc::kPeerLost);
  EXPECT_EQ(faulty.num_calls(), 1);
}

// Ranks that answer no request until the test lets them.
class HeldRanksTest : public PullClientTest {
 protected:
  ~HeldRanksTest() override { release(); }

  FakeRanks::Hook hold() {
    return [this](const protocol::PageRequest& request) -> Result<void> {
      std::unique_lock lock(mutex_);
      seen_.push_back(request.request_id() + "/" + std::to_string(request.layer()));
      changed_.notify_all();
      changed_.wait(lock, [&] { return released_; });
      return {};
    };
  }
  void wait_for_requests(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return seen_.size() >= count; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> seen_;
  bool released_ = false;
};

TEST_F(HeldRanksTest, ACancelledPullEndsWhileRanksAreSilentAndWritesNothingLater) {
  FakeRanks ranks(transport_, {}, hold());
  PullClient client(transport_, {.num_threads = 3});
  PagedCache cache(ranks, whole(ranks));
  auto pull = *client.start(ranks.manifest(), cache.request());
  wait_for_requests(3);
  EXPECT_FALSE(pull->wait(past()).has_value());
  pull->cancel();
  EXPECT_EQ(end_of(*pull), Errc::kCancelled);
  release();
  expect_pulled(client, ranks, whole(ranks));
  EXPECT_TRUE(cache.untouched());
}

TEST_F(HeldRanksTest, DestroyingAClientEndsItsPulls) {
  FakeRanks ranks(transport_, {}, hold());
  PagedCache cache(ranks, whole(ranks));
  auto client = std::make_unique<PullClient>(transport_, PullClientOptions{.num_threads = 2});
  const auto pull = *client->start(ranks.manifest(), cache.request());
  wait_for_requests(2);
  client.reset();
  EXPECT_EQ(end_of(*pull), Errc::kCancelled);
  release();
  EXPECT_TRUE(cache.untouched());
}

TEST_F(HeldRanksTest, APullEndsWithItsTimeoutThoughAllThreadsWaitForOthers) {
  FakeRanks ranks(transport_, {}, hold());
  PullClient client(transport_, {.num_threads = 2});
  PagedCache busy_cache(ranks, whole(ranks)), cache(ranks, whole(ranks));
  const auto busy = *client.start(ranks.manifest(), busy_cache.request());
  wait_for_requests(2);
  auto request = cache.request();
  request.timeout = std::chrono::milliseconds(1);
  const auto pull = *client.start(ranks.manifest(), std::move(request));
  EXPECT_EQ(end_of(*pull), Errc::kDeadlineExceeded);
  EXPECT_EQ(pull->stats().pages, 0);
  release();
  EXPECT_TRUE(busy->wait(ample())->ok());
}

TEST_F(HeldRanksTest, PullsOfHigherPriorityGoFirst) {
  FakeRanks ranks(transport_, {.num_layers = 1, .tp = 1, .cp = 1}, hold());
  PullClient client(transport_, {.num_threads = 1});
  PagedCache first_cache(ranks, whole(ranks)), low_cache(ranks, whole(ranks)),
      high_cache(ranks, whole(ranks));
  const auto start = [&](PagedCache& cache, const char* id, int32_t priority) {
    auto manifest = ranks.manifest();
    manifest.request_id = id;
    auto request = cache.request();
    request.priority = priority;
    return *client.start(manifest, std::move(request));
  };
  const auto first = start(first_cache, "first", 0);
  wait_for_requests(1);
  const auto low = start(low_cache, "low", 0);
  const auto high = start(high_cache, "high", 1);
  release();
  for (const auto& pull : {&first, &low, &high}) EXPECT_TRUE((*pull)->wait(ample())->ok());
  std::vector<std::string> expected = {"first/0"};
  for (const auto& [id, count] : {std::pair{"high/0", 4}, {"first/0", 3}, {"low/0", 4}}) {
    for (int i = 0; i < count; ++i) expected.push_back(id);
  }
  EXPECT_EQ(seen_, expected);
}

TEST_F(PullClientTest, ManyPullsOfTwoClientsAtOnceGetEachItsOwn) {
  const FakeRanks a(transport_, {.num_kv_heads = 4, .num_tokens = 500});
  const FakeRanks b(transport_, {.num_kv_heads = 2, .head_dim = 32, .num_tokens = 900});
  PullClient one(transport_, {.num_threads = 2}), two(transport_, {.num_threads = 3});
  struct Running {
    std::unique_ptr<PagedCache> cache;
    std::unique_ptr<Pull> pull;
  };
  std::vector<Running> running;
  for (int i = 0; i < 12; ++i) {
    const auto& ranks = i % 2 == 0 ? a : b;
    auto cache = std::make_unique<PagedCache>(
        ranks, whole(ranks, i % 3 == 0 ? Layout::kNhdTwoTensors : Layout::kHndKvPages));
    auto pull = *(i % 4 < 2 ? one : two).start(ranks.manifest(), cache->request());
    running.push_back({std::move(cache), std::move(pull)});
  }
  for (const auto& each : running) {
    ASSERT_TRUE(each.pull->wait(ample())->ok());
    EXPECT_EQ(each.cache->difference(), "");
  }
}

TEST_F(PullClientTest, ARankWithoutMemoryToReadIntoIsAskedAgain) {
  std::atomic<int> num_full = 5;
  const FakeRanks ranks(transport_, {}, [&](const protocol::PageRequest&) -> Result<void> {
    if (num_full-- > 0) return Error(Errc::kExhausted, "full");
    return {};
  });
  PullClient client(transport_, {.num_threads = 2});
  expect_pulled(client, ranks, whole(ranks));
}

TEST_F(PullClientTest, WhatTheRanksRefuseFailsThePull) {
  const FakeRanks ranks(transport_, {}, [](const protocol::PageRequest&) -> Result<void> {
    return Error(Errc::kNotFound, "the lease is over");
  });
  PullClient client(transport_, {.num_threads = 2});
  PagedCache cache(ranks, whole(ranks));
  const auto pull = *client.start(ranks.manifest(), cache.request());
  const auto end = pull->wait(ample());
  EXPECT_EQ(end->error().code, Errc::kNotFound);
  EXPECT_THAT(end->error().message, HasSubstr("prompt-1"));
  EXPECT_TRUE(cache.untouched());
}

// Ranks whose layers become available one after another.
class StreamingPullTest : public PullClientTest {
 protected:
  StreamingPullTest()
      : ranks_(transport_, {.num_layers = 4}, [this](const protocol::PageRequest& request) {
          if (static_cast<int>(request.layer()) < num_layers_) return Result<void>();
          ++num_early_;
          return Result<void>(Error(Errc::kUnavailable, "not there yet"));
        }) {}

  std::atomic<int> num_layers_ = 0;
  std::atomic<int> num_early_ = 0;
  FakeRanks ranks_;
  PullClient client_{transport_, {.num_threads = 3}};
};

TEST_F(StreamingPullTest, LayersArePulledWhenTheirEventsCome) {
  const auto feed = std::make_shared<HandoverFeed>();
  PagedCache cache(ranks_, whole(ranks_));
  auto request = cache.request();
  request.feed = feed;
  const auto pull = *client_.start(ranks_.manifest(), std::move(request));
  feed->write("event: queued\ndata: {\"request_id\":\"prompt-1\"}\n\n");
  for (int32_t layer = 0; layer < 4; ++layer) {
    EXPECT_FALSE(pull->wait_for_layer(layer, past()).has_value());
    num_layers_ = layer + 1;
    feed->write(fmt::format("event: layer\ndata: {{\"layer\":{}}}\n\n", layer));
    ASSERT_TRUE(pull->wait_for_layer(layer, ample())->ok());
    EXPECT_EQ(cache.difference_of_layer(layer), "");
    EXPECT_EQ(pull->progress().layers_complete, layer + 1);
  }
  EXPECT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(num_early_, 0);
}

TEST_F(StreamingPullTest, AFeedThatFailsFailsThePullsThatWaitForIt) {
  const auto feed = std::make_shared<HandoverFeed>();
  PagedCache cache(ranks_, whole(ranks_));
  auto request = cache.request();
  request.feed = feed;
  const auto pull = *client_.start(ranks_.manifest(), std::move(request));
  num_layers_ = 1;
  feed->set_layers_ready(1);
  ASSERT_TRUE(pull->wait_for_layer(0, ample())->ok());
  feed->fail(Error(Errc::kPeerLost, "the stream broke off"));
  EXPECT_EQ(end_of(*pull), Errc::kPeerLost);
  EXPECT_TRUE(pull->wait_for_layer(0, past())->ok());
  EXPECT_EQ(pull->wait_for_layer(1, past())->error().code, Errc::kPeerLost);
}

TEST_F(StreamingPullTest, WithoutAFeedPagesThatAreNotThereAreAnErrorOrAskedForAgain) {
  PagedCache cache(ranks_, whole(ranks_));
  auto pull = *client_.start(ranks_.manifest(), cache.request());
  EXPECT_EQ(end_of(*pull), Errc::kUnavailable);

  auto request = cache.request();
  request.ask_again = true;
  pull = *client_.start(ranks_.manifest(), std::move(request));
  for (int layer = 0; layer < 4; ++layer) {
    num_layers_ = layer + 1;
    ASSERT_TRUE(pull->wait_for_layer(layer, ample())->ok());
  }
  EXPECT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(cache.difference(), "");
}

TEST_F(PullClientTest, RequestsThatCannotBeAreRefusedBeforeAnyoneIsAsked) {
  const FakeRanks ranks(transport_, {});
  PullClient client(transport_, {.num_threads = 1});
  const auto expect = [&](Errc code, const std::function<void(PullRequest&)>& spoil) {
    PagedCache cache(ranks, whole(ranks));
    auto request = cache.request();
    spoil(request);
    const auto started = client.start(ranks.manifest(), std::move(request));
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.error().code, code) << started.error().to_string();
  };
  constexpr auto kInvalid = Errc::kInvalidArgument;
  expect(Errc::kUnsupported, [](PullRequest& r) { r.dtype = DType::kFloat16; });
  expect(Errc::kUnsupported, [](PullRequest& r) { r.block_tokens = 48; });
  expect(kInvalid, [](PullRequest& r) { r.head_dim = 8; });
  expect(kInvalid, [](PullRequest& r) { r.first_layer = 1; });
  expect(kInvalid, [](PullRequest& r) { r.first_layer = -1; });
  expect(kInvalid, [](PullRequest& r) { r.layers.clear(); });
  expect(kInvalid, [](PullRequest& r) { r.first_kv_head = 1; });
  expect(kInvalid, [](PullRequest& r) { r.num_kv_heads = 0; });
  expect(kInvalid, [](PullRequest& r) { r.num_kv_heads = INT32_MAX; });
  expect(kInvalid, [](PullRequest& r) { r.first_token = 1; });
  expect(kInvalid, [](PullRequest& r) { r.num_tokens = INT64_MAX; });
  expect(kInvalid, [](PullRequest& r) { r.block_ids.pop_back(); });
  expect(kInvalid, [](PullRequest& r) { r.block_ids[2] = -1; });
  expect(kInvalid, [](PullRequest& r) { r.layers[1].v = nullptr; });
  expect(kInvalid, [](PullRequest& r) { r.timeout = Duration::zero(); });
  for (const double share : {0.0, 1.001, -1.0, std::nan("")}) {
    expect(kInvalid, [share](PullRequest& r) { r.hot_share = share; });
  }
  EXPECT_EQ(ranks.num_requests(), 0);
}

}  // namespace
}  // namespace millrace::kvclient
