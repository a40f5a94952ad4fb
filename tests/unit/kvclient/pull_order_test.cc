// SPDX-License-Identifier: Apache-2.0
// Pulls in order of criticality: what comes first, what has arrived when a wait says so, and how
// they end when something goes wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <tuple>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "kvclient/kv_client.h"
#include "kvclient/order/hot_list.h"
#include "kvclient/pull_client.h"
#include "tests/unit/kvclient/fake_ranks.h"
#include "tests/unit/kvclient/paged_cache.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::Layout;
using test::PagedCache;
using test::PagedShape;
using ::testing::ElementsAre;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}
Deadline past() {
  return Deadline::after(Duration::zero());
}

TEST(HotList, IsTheFewestPagesThatCarryTheShareTheEarlierOfEqualOnes) {
  const std::vector<float> scores = {0.125f, 0.5f, 0, 0.25f, 0.125f};
  EXPECT_THAT(hot_list(scores, 0.5), ElementsAre(false, true, false, false, false));
  EXPECT_THAT(hot_list(scores, 0.51), ElementsAre(false, true, false, true, false));
  EXPECT_THAT(hot_list(scores, 0.8), ElementsAre(true, true, false, true, false));
  EXPECT_THAT(hot_list(scores, 1), ElementsAre(true, true, false, true, true));
  EXPECT_THAT(hot_list(std::vector<float>(2), 1), ElementsAre(false, false));
  EXPECT_THAT(hot_list(std::vector<float>{-0.0f, 0.5f}, 1), ElementsAre(false, true));
  EXPECT_TRUE(hot_list({}, 0.5).empty());
}

using PageId = std::tuple<int32_t, int32_t, int64_t>;  // layer, kv head, page

// Ranks that record which pages they were asked for, in order.
class PullOrderTest : public testing::Test {
 protected:
  explicit PullOrderTest(const FakeRanks::Options& options = {.num_layers = 3})
      : ranks_(transport_, options,
               [this](const protocol::PageRequest& request) { return note(request); }) {}

  Result<void> note(const protocol::PageRequest& request) {
    const std::lock_guard lock(mutex_);
    if (request.has_scores()) {
      ++num_score_requests_;
      return refuse_ ? refuse_(request) : Result<void>();
    }
    std::vector<int64_t> pages(request.pages().begin(), request.pages().end());
    for (uint32_t i = 0; i < request.num_pages(); ++i) {
      pages.push_back(static_cast<int64_t>(request.first_page() + i));
    }
    for (const int64_t page : pages) {
      asked_.emplace_back(static_cast<int32_t>(request.layer()),
                          static_cast<int32_t>(request.kv_head()), page);
    }
    return refuse_ ? refuse_(request) : Result<void>();
  }
  PagedShape whole(Layout layout = Layout::kHndTwoTensors) const {
    return test::whole(ranks_, layout);
  }
  static PullRequest by_criticality(PagedCache& cache, double share = 0.95) {
    auto request = cache.request();
    request.order = PullOrder::kCriticality;
    request.hot_share = share;
    return request;
  }
  // Computed page by page from the scores that the ranks were made with.
  std::set<PageId> expected_hot(const PagedShape& shape, double share) const {
    std::set<PageId> hot;
    const int64_t first = shape.first_token / 64;
    const int64_t end = (shape.first_token + shape.num_tokens + 63) / 64;
    for (int32_t l = 0; l < shape.num_layers; ++l) {
      for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
        const auto scores = ranks_.scores(shape.first_layer + l, shape.first_kv_head + h);
        std::vector<std::pair<float, int64_t>> best;
        double sum = 0;
        for (int64_t page = first; page < end; ++page) {
          best.emplace_back(-scores[static_cast<size_t>(page)], page);
          sum += scores[static_cast<size_t>(page)];
        }
        std::sort(best.begin(), best.end());
        double carried = 0;
        for (const auto& [score, page] : best) {
          if (carried >= share * sum) break;
          hot.emplace(shape.first_layer + l, shape.first_kv_head + h, page);
          carried -= score;
        }
      }
    }
    return hot;
  }
  // The hot pages come before all others, each of them once.
  void expect_hot_first(const std::set<PageId>& hot, size_t num_pages) const {
    ASSERT_EQ(asked_.size(), num_pages);
    EXPECT_EQ(std::set<PageId>(asked_.begin(), asked_.end()).size(), num_pages);
    EXPECT_EQ(std::set<PageId>(asked_.begin(), asked_.begin() + static_cast<ptrdiff_t>(hot.size())),
              hot);
  }

  comm::LocalTransport transport_;
  std::mutex mutex_;
  std::vector<PageId> asked_;
  int num_score_requests_ = 0;
  std::function<Result<void>(const protocol::PageRequest&)> refuse_;
  FakeRanks ranks_;
};

TEST_F(PullOrderTest, TheHotPagesOfAllLayersComeFirstAndAllBytesAreThoseOfAPullByPosition) {
  PullClient client(transport_, {.num_threads = 1, .pages_per_request = 3});
  for (const double share : {0.5, 0.95}) {
    asked_.clear();
    PagedCache cache(ranks_, whole()), by_position(ranks_, whole());
    const auto pull = *client.start(ranks_.manifest(), by_criticality(cache, share));
    ASSERT_TRUE(pull->wait(ample())->ok());
    EXPECT_EQ(cache.difference(), "");
    const auto hot = expected_hot(whole(), share);
    EXPECT_LT(hot.size(), static_cast<size_t>(pull->num_pages()));
    expect_hot_first(hot, static_cast<size_t>(pull->num_pages()));
    // By layer within each step.
    const auto step = asked_.begin() + static_cast<ptrdiff_t>(hot.size());
    const auto by_layer = [](const PageId& a, const PageId& b) {
      return std::get<0>(a) < std::get<0>(b);
    };
    EXPECT_TRUE(std::is_sorted(asked_.begin(), step, by_layer));
    EXPECT_TRUE(std::is_sorted(step, asked_.end(), by_layer));
    const auto progress = pull->progress();
    EXPECT_EQ(progress.stats.hot_pages, std::ssize(hot));
    EXPECT_EQ(progress.stats.hot_pages_total, std::ssize(hot));
    EXPECT_EQ(progress.hot_layers_complete, 3);
    EXPECT_TRUE(progress.hot_s.has_value());
    // One score for each page, and the usual bytes of pages.
    EXPECT_EQ(progress.stats.score_bytes, pull->num_pages() * 4);
    EXPECT_EQ(progress.stats.bytes, pull->num_pages() * ranks_.manifest().page_bytes());
  }
  EXPECT_EQ(num_score_requests_, 2 * 4);  // one a rank and pull
}

TEST_F(PullOrderTest, APartOfTheCacheHasTheHotListOfThatPart) {
  PullClient client(transport_, {.num_threads = 2});
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{100, 333}, {640, 60}, {0, 64}}) {
    asked_.clear();
    auto part = whole(Layout::kNhdTwoTensors);
    part.first_layer = 1;
    part.num_layers = 2;
    part.first_kv_head = 1;
    part.num_kv_heads = 2;
    part.first_token = first;
    part.num_tokens = count;
    PagedCache cache(ranks_, part);
    const auto pull = *client.start(ranks_.manifest(), by_criticality(cache, 0.6));
    ASSERT_TRUE(pull->wait(ample())->ok());
    EXPECT_EQ(cache.difference(), "");
    EXPECT_EQ(pull->stats().hot_pages, std::ssize(expected_hot(part, 0.6)));
  }
}

TEST_F(PullOrderTest, AShareOfOneLeavesNothingForTheSecondStep) {
  PullClient client(transport_, {.num_threads = 2});
  PagedCache cache(ranks_, whole());
  const auto pull = *client.start(ranks_.manifest(), by_criticality(cache, 1));
  ASSERT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(pull->stats().hot_pages, pull->num_pages());
  EXPECT_EQ(cache.difference(), "");
}

TEST_F(PullOrderTest, HotPagesOfALayerAreThereWhenTheWaitForThemEnds) {
  // In layer 0, all but the hot pages are held back.
  const auto hot = expected_hot(whole(), 0.95);
  std::atomic<bool> held = true;
  refuse_ = [&](const protocol::PageRequest& request) -> Result<void> {
    if (request.has_scores() || !held) return {};
    const PageId page{static_cast<int32_t>(request.layer()),
                      static_cast<int32_t>(request.kv_head()),
                      static_cast<int64_t>(request.pages(0))};
    if (hot.contains(page)) return {};
    return Error(Errc::kExhausted, "held back");
  };
  PullClient client(transport_, {.num_threads = 2});
  PagedCache cache(ranks_, whole());
  const auto pull = *client.start(ranks_.manifest(), by_criticality(cache));
  for (int32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(pull->wait_for_hot(layer, ample())->ok());
    EXPECT_FALSE(pull->wait_for_layer(layer, past()).has_value());
  }
  EXPECT_EQ(pull->stats().pages, std::ssize(hot));
  EXPECT_EQ(pull->wait_for_hot(3, past())->error().code, Errc::kInvalidArgument);
  held = false;
  ASSERT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(cache.difference(), "");
}

TEST_F(PullOrderTest, ByPositionThereIsNoListAndAWaitForItIsOneForTheLayer) {
  PullClient client(transport_, {.num_threads = 2});
  PagedCache cache(ranks_, whole());
  const auto pull = *client.start(ranks_.manifest(), cache.request());
  ASSERT_TRUE(pull->wait_for_hot(1, ample())->ok());
  EXPECT_TRUE(pull->wait_for_layer(1, past())->ok());
  ASSERT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(pull->stats().hot_pages, pull->num_pages());
  EXPECT_EQ(num_score_requests_, 0);
}

TEST_F(PullOrderTest, ScoresThatAreRefusedFailThePull) {
  for (const Errc code : {Errc::kNotFound, Errc::kInvalidArgument}) {
    refuse_ = [&](const protocol::PageRequest& request) -> Result<void> {
      return request.has_scores() ? Error(code, "refused") : Result<void>();
    };
    PullClient client(transport_, {.num_threads = 2});
    PagedCache cache(ranks_, whole());
    const auto pull = *client.start(ranks_.manifest(), by_criticality(cache));
    EXPECT_EQ(pull->wait(ample())->error().code, code);
    EXPECT_EQ(pull->wait_for_hot(0, past())->error().code, code);
    EXPECT_TRUE(cache.untouched());
  }
}

TEST_F(PullOrderTest, ScoresThatAreNoNumbersOrNegativeFailThePull) {
  for (const float score :
       {-0.5f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const FakeRanks lying(transport_, {.first_score = score});
    PullClient client(transport_, {.num_threads = 2});
    PagedCache cache(lying, {.block_tokens = 64,
                             .num_tokens = lying.manifest().num_tokens,
                             .num_kv_heads = 4,
                             .num_layers = 2});
    const auto pull = *client.start(lying.manifest(), by_criticality(cache));
    EXPECT_EQ(pull->wait(ample())->error().code, Errc::kCorrupt);
    EXPECT_TRUE(cache.untouched());
    KvClient reader(transport_, lying.manifest(), {});
    EXPECT_EQ(reader.pull_scores(0, 1, 0, 1, ample()).error().code, Errc::kCorrupt);
  }
}

TEST_F(PullOrderTest, APageThatArrivesWrongIsFetchedAgainByItsOwnNumber) {
  comm::FaultTransport faulty(
      transport_, {{{.kind = comm::FaultKind::kFlipByte, .first_call = 6, .byte = 9000},
                    {.kind = comm::FaultKind::kFlipByte, .first_call = 9, .byte = 77}}});
  PullClient client(faulty, {.num_threads = 2});
  PagedCache cache(ranks_, whole());
  const auto pull = *client.start(ranks_.manifest(), by_criticality(cache));
  ASSERT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(cache.difference(), "");
  EXPECT_EQ(pull->stats().corrupt_pages, 2);
}

TEST_F(PullOrderTest, ARankLostBetweenTheStepsFailsThePullAndHotLayersStayGood) {
  const auto hot = expected_hot(whole(), 0.95);
  refuse_ = [&](const protocol::PageRequest& request) -> Result<void> {
    if (request.has_scores()) return {};
    const PageId page{static_cast<int32_t>(request.layer()),
                      static_cast<int32_t>(request.kv_head()),
                      static_cast<int64_t>(request.pages(0))};
    if (hot.contains(page)) return {};
    return Error(Errc::kPeerLost, "lost");
  };
  PullClient client(transport_, {.num_threads = 1});
  PagedCache cache(ranks_, whole());
  const auto pull = *client.start(ranks_.manifest(), by_criticality(cache));
  EXPECT_EQ(pull->wait(ample())->error().code, Errc::kPeerLost);
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(pull->wait_for_hot(layer, past())->ok());
    EXPECT_EQ(pull->wait_for_layer(layer, past())->error().code, Errc::kPeerLost);
  }
}

TEST_F(PullOrderTest, APullThatIsCancelledBetweenTheStepsEnds) {
  const auto hot = expected_hot(whole(), 0.95);
  refuse_ = [&](const protocol::PageRequest& request) -> Result<void> {
    const bool rest =
        !request.has_scores() && !hot.contains({static_cast<int32_t>(request.layer()),
                                                static_cast<int32_t>(request.kv_head()),
                                                static_cast<int64_t>(request.pages(0))});
    return rest ? Error(Errc::kExhausted, "held back") : Result<void>();
  };
  PullClient client(transport_, {.num_threads = 2});
  PagedCache cache(ranks_, whole());
  const auto pull = *client.start(ranks_.manifest(), by_criticality(cache));
  ASSERT_TRUE(pull->wait_for_hot(2, ample())->ok());
  pull->cancel();
  EXPECT_EQ(pull->wait(ample())->error().code, Errc::kCancelled);
  EXPECT_LE(pull->stats().pages, std::ssize(hot));
}

// Layers that become available one after another.
class StreamedOrderTest : public PullOrderTest {
 protected:
  StreamedOrderTest() : PullOrderTest({.num_layers = 4}) {
    refuse_ = [this](const protocol::PageRequest& request) -> Result<void> {
      const auto end = request.layer() + std::max(1u, request.scores().num_layers());
      if (static_cast<int>(end) <= num_layers_) return {};
      ++num_early_;
      return Error(Errc::kUnavailable, "not there yet");
    };
  }
  std::atomic<int> num_layers_ = 0;
  std::atomic<int> num_early_ = 0;
};

TEST_F(StreamedOrderTest, ALayerIsPulledInBothStepsBeforeTheNextIsThere) {
  const auto feed = std::make_shared<HandoverFeed>();
  PullClient client(transport_, {.num_threads = 3});
  PagedCache cache(ranks_, whole());
  auto request = by_criticality(cache);
  request.feed = feed;
  const auto pull = *client.start(ranks_.manifest(), std::move(request));
  for (int32_t layer = 0; layer < 4; ++layer) {
    EXPECT_FALSE(pull->wait_for_hot(layer, past()).has_value());
    num_layers_ = layer + 1;
    feed->set_layers_ready(layer + 1);
    ASSERT_TRUE(pull->wait_for_hot(layer, ample())->ok());
    ASSERT_TRUE(pull->wait_for_layer(layer, ample())->ok());
    EXPECT_EQ(cache.difference_of_layer(layer), "");
  }
  EXPECT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(num_early_, 0);
}

TEST_F(StreamedOrderTest, WithoutAFeedScoresAreAskedForUntilTheyAreThere) {
  PullClient client(transport_, {.num_threads = 2});
  PagedCache cache(ranks_, whole());
  auto request = by_criticality(cache);
  request.ask_again = true;
  const auto pull = *client.start(ranks_.manifest(), std::move(request));
  for (int layer = 0; layer < 4; ++layer) {
    num_layers_ = layer + 1;
    ASSERT_TRUE(pull->wait_for_layer(layer, ample())->ok());
  }
  EXPECT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(cache.difference(), "");
}

TEST_F(PullOrderTest, AClientOfOneCallAtATimeReadsTheScoresOfAllRanks) {
  KvClient client(transport_, ranks_.manifest(), {});
  const auto scores = client.pull_scores(1, 2, 1, 3, ample());
  ASSERT_TRUE(scores.ok()) << scores.error().to_string();
  std::vector<float> expected;
  for (int32_t layer = 1; layer < 3; ++layer) {
    for (int32_t head = 1; head < 4; ++head) {
      const auto row = ranks_.scores(layer, head);
      expected.insert(expected.end(), row.begin(), row.end());
    }
  }
  EXPECT_EQ(*scores, expected);
  for (const auto& [first_layer, num_layers, first_head, num_heads] :
       {std::tuple{0, 4, 0, 1}, {-1, 1, 0, 1}, {0, 0, 0, 1}, {0, 1, 3, 2}, {2, INT32_MAX, 0, 1}}) {
    EXPECT_EQ(
        client.pull_scores(first_layer, num_layers, first_head, num_heads, ample()).error().code,
        Errc::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::kvclient
