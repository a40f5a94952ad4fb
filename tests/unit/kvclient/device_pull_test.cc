// SPDX-License-Identifier: Apache-2.0
// Pulls into the memory of a device. It is this process' own, behind a copier that counts.
#include <gtest/gtest.h>

#include <atomic>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "kvclient/pull_client.h"
#include "tests/unit/kvclient/fake_copier.h"
#include "tests/unit/kvclient/paged_cache.h"
#include "tests/unit/kvclient/stored_ranks.h"

namespace millrace::kvclient {
namespace {

using test::FakeCopier;
using test::FakeRanks;
using test::Layout;
using test::PagedCache;
using test::StoredRanks;
using test::whole;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class DevicePullTest : public ::testing::Test {
 protected:
  static PullRequest on_device(PagedCache& cache) {
    auto request = cache.request();
    request.device = 3;
    return request;
  }
  static Result<void> end_of(Pull& pull) {
    auto end = pull.wait(ample());
    MR_CHECK(end.has_value(), "late");
    return *end;
  }

  comm::LocalTransport transport_;
  const FakeRanks cache_{transport_, {}};
};

TEST_F(DevicePullTest, EveryRowLiesWhereTheStridesSayAndNothingBesideIt) {
  StoredRanks ranks(transport_, cache_, {});
  const int64_t row = cache_.manifest().layout.head_dim * cache_.manifest().element_bytes();
  for (const bool same_host : {false, true}) {
    const auto copier = std::make_shared<FakeCopier>();
    PullClient client(transport_, {.num_threads = 3,
                                   .pages_per_request = 3,
                                   .same_host = same_host,
                                   .device_copier = copier});
    for (const Layout layout : {Layout::kNhdTwoTensors, Layout::kHndTwoTensors,
                                Layout::kHndKvSideBySide, Layout::kHndKvPages}) {
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 700}, {63, 2}, {100, 333}, {699, 1}}) {
        SCOPED_TRACE(fmt::format("same host {}, layout {}, tokens {} + {}", same_host,
                                 static_cast<int>(layout), first, count));
        auto shape = whole(cache_, layout, 32);
        shape.first_token = first;
        shape.num_tokens = count;
        PagedCache cache(cache_, shape);
        const int64_t before = copier->bytes;
        const auto pull = *client.start(ranks.manifest(), on_device(cache));
        ASSERT_TRUE(end_of(*pull).ok());
        EXPECT_EQ(cache.difference(), "");
        // The copier writes all of it, and only rows that were asked for.
        EXPECT_EQ(copier->bytes - before, 2 * count * shape.num_kv_heads * shape.num_layers * row);
      }
    }
    EXPECT_LE(copier->opened, 3);
  }
}

TEST_F(DevicePullTest, PagesInOrderOfCriticalityLieThereToo) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(
      transport_,
      {.num_threads = 2, .pages_per_request = 3, .device_copier = std::make_shared<FakeCopier>()});
  for (int turn = 0; turn < 2; ++turn) {  // the second one from the ranks' memory
    PagedCache cache(cache_, whole(cache_));
    auto request = on_device(cache);
    request.order = PullOrder::kCriticality;
    request.hot_share = 0.5;
    const auto pull = *client.start(ranks.manifest(), std::move(request));
    ASSERT_TRUE(end_of(*pull).ok());
    EXPECT_EQ(cache.difference(), "");
  }
}

TEST_F(DevicePullTest, APageThatArrivesWrongIsFetchedAgainBeforeItIsCopied) {
  comm::FaultTransport faulty(
      transport_, {{{.kind = comm::FaultKind::kFlipByte, .first_call = 3, .byte = 9000}}});
  PullClient client(faulty, {.num_threads = 1, .device_copier = std::make_shared<FakeCopier>()});
  PagedCache cache(cache_, whole(cache_));
  const auto pull = *client.start(cache_.manifest(), on_device(cache));
  ASSERT_TRUE(end_of(*pull).ok());
  EXPECT_EQ(pull->stats().corrupt_pages, 1);
  EXPECT_EQ(cache.difference(), "");
}

TEST_F(DevicePullTest, APageThatStaysWrongIsNeverCopied) {
  comm::FaultTransport faulty(
      transport_,
      {{{.kind = comm::FaultKind::kFlipByte, .first_call = 0, .num_calls = 1 << 20, .byte = 90}}});
  const auto copier = std::make_shared<FakeCopier>();
  PullClient client(faulty, {.num_threads = 1, .device_copier = copier});
  PagedCache cache(cache_, whole(cache_));
  const auto pull = *client.start(cache_.manifest(), on_device(cache));
  EXPECT_EQ(end_of(*pull).error().code, Errc::kCorrupt);
  EXPECT_EQ(copier->bytes, 0);
  EXPECT_TRUE(cache.untouched());
}

TEST_F(DevicePullTest, ACancelledPullEndsOnceItsCopyHas) {
  Pull* pull = nullptr;
  std::atomic<bool> started = false;
  bool ended_during_copy = true;
  const auto copier = std::make_shared<FakeCopier>([&]() -> Result<void> {
    started.wait(false);
    pull->cancel();
    ended_during_copy = pull->wait(Deadline::after(std::chrono::seconds(0))).has_value();
    return {};
  });
  PullClient client(transport_, {.num_threads = 1, .device_copier = copier});
  PagedCache cache(cache_, whole(cache_));
  const auto owned = *client.start(cache_.manifest(), on_device(cache));
  pull = owned.get();
  started = true;
  started.notify_all();
  EXPECT_EQ(end_of(*owned).error().code, Errc::kCancelled);
  EXPECT_EQ(copier->writing, 0);
  EXPECT_FALSE(ended_during_copy);
}

TEST_F(DevicePullTest, AnErrorOfTheDeviceEndsThePull) {
  const auto copier = std::make_shared<FakeCopier>(
      [] { return Result<void>(Error(Errc::kInternal, "the GPU fell off")); });
  PullClient client(transport_, {.num_threads = 2, .device_copier = copier});
  PagedCache cache(cache_, whole(cache_));
  const auto pull = *client.start(cache_.manifest(), on_device(cache));
  EXPECT_EQ(end_of(*pull).error().code, Errc::kInternal);
  EXPECT_TRUE(cache.untouched());
}

TEST_F(DevicePullTest, ADeviceThatIsNotThereIsUnsupported) {
  PullClient client(transport_, {.device_copier = std::make_shared<FakeCopier>()});
  PagedCache cache(cache_, whole(cache_));
  auto request = cache.request();
  request.device = 4;
  const auto pull = *client.start(cache_.manifest(), std::move(request));
  EXPECT_EQ(end_of(*pull).error().code, Errc::kUnsupported);
}

}  // namespace
}  // namespace millrace::kvclient
