// SPDX-License-Identifier: Apache-2.0
// Pulls from the memory of ranks on this host: what arrives, over which path, and what happens if
// that path is not open.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/local/local_transport.h"
#include "comm/memfd/memfd_connection.h"
#include "kvclient/pull_client.h"
#include "kvclient/ranks/page_call.h"
#include "tests/unit/kvclient/paged_cache.h"
#include "tests/unit/kvclient/stored_ranks.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::Layout;
using test::PagedCache;
using test::PagedShape;
using test::StoredRanks;
using test::whole;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class SameHostPullTest : public ::testing::Test {
 protected:
  PullStats pull(PullClient& client, const Manifest& manifest, const PagedShape& shape) {
    PagedCache cache(cache_, shape);
    const auto pull = *client.start(manifest, cache.request());
    const auto end = pull->wait(ample());
    EXPECT_TRUE(end && end->ok()) << (end ? end->error().to_string() : "late");
    EXPECT_EQ(cache.difference(), "");
    return pull->stats();
  }
  Errc failure_of(PullClient& client, const Manifest& manifest) {
    PagedCache cache(cache_, whole(cache_));
    const auto pull = *client.start(manifest, cache.request());
    const auto end = pull->wait(ample());
    MR_CHECK(end && !end->ok(), "the pull did not fail");
    return end->error().code;
  }

  comm::LocalTransport transport_;
  const FakeRanks cache_{transport_, {}};
};

TEST_F(SameHostPullTest, AfterTheFirstAnswersAllPagesInMemoryAreCopiedFromThere) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(transport_, {.num_threads = 1, .pages_per_request = 2});
  const auto first = pull(client, ranks.manifest(), whole(cache_));
  // One request to each rank goes over the transport and brings its socket.
  EXPECT_GT(first.bytes_by_transport.at("local"), 0);
  EXPECT_LE(first.bytes_by_transport.at("local"),
            static_cast<int64_t>(ranks.num_ranks()) * 2 * ranks.manifest().page_bytes());
  const auto second = pull(client, ranks.manifest(), whole(cache_));
  EXPECT_EQ(second.bytes_by_transport.size(), 1u);
  EXPECT_EQ(second.bytes_by_transport.at("same-host"), second.bytes);
  EXPECT_EQ(second.pages_by_tier[Tier::kHost], second.pages);
  EXPECT_EQ(ranks.bytes_sent_over(comm::Carrier::kSameHost),
            second.bytes + first.bytes_by_transport.at("same-host"));
}

TEST_F(SameHostPullTest, EveryRowLiesWhereTheStridesSayAndNothingBesideIt) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(transport_, {.num_threads = 3, .pages_per_request = 3});
  pull(client, ranks.manifest(), whole(cache_));
  for (const Layout layout :
       {Layout::kNhdTwoTensors, Layout::kNhdOneTensor, Layout::kHndTwoTensors,
        Layout::kHndKvSideBySide, Layout::kNhdKvSideBySide, Layout::kHndKvPages}) {
    for (const int32_t block_tokens : {16, 32, 64, 128}) {
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 700}, {64, 128}, {63, 2}, {100, 333}, {699, 1}}) {
        SCOPED_TRACE(fmt::format("layout {}, blocks of {}, tokens {} + {}",
                                 static_cast<int>(layout), block_tokens, first, count));
        auto shape = whole(cache_, layout, block_tokens);
        shape.first_token = first;
        shape.num_tokens = count;
        const auto stats = pull(client, ranks.manifest(), shape);
        EXPECT_EQ(stats.bytes_by_transport.at("same-host"), stats.bytes);
      }
    }
  }
}

TEST_F(SameHostPullTest, PagesOnDiskComeOverTheTransport) {
  StoredRanks ranks(transport_, cache_, {.host_pages = 5});
  PullClient client(transport_, {.num_threads = 1});
  pull(client, ranks.manifest(), whole(cache_));
  const auto stats = pull(client, ranks.manifest(), whole(cache_));
  const int64_t page = ranks.manifest().page_bytes();
  EXPECT_GT(stats.pages_by_tier[Tier::kDisk], 0);
  EXPECT_GT(stats.pages_by_tier[Tier::kHost], 0);
  EXPECT_EQ(stats.bytes_by_transport.at("local"), stats.pages_by_tier[Tier::kDisk] * page);
  EXPECT_EQ(stats.bytes_by_transport.at("same-host"), stats.pages_by_tier[Tier::kHost] * page);
}

TEST_F(SameHostPullTest, PagesOfAFarDeviceAreCopiedFromTheHostsCopies) {
  StoredRanks ranks(transport_, cache_, {.far_device_pages = 1000});
  PullClient client(transport_, {.num_threads = 1});
  pull(client, ranks.manifest(), whole(cache_));
  const auto stats = pull(client, ranks.manifest(), whole(cache_));
  EXPECT_EQ(stats.pages_by_tier[Tier::kDevice], stats.pages);
  EXPECT_EQ(stats.bytes_by_transport.at("same-host"), stats.bytes);
}

// As if the slot had been given to another page between the answer and the copy.
TEST_F(SameHostPullTest, ACopyThatIsNotWhatTheRankWroteIsFetchedOverTheTransport) {
  StoredRanks ranks(transport_, cache_, {.far_device_pages = 1000});
  PullClient client(transport_, {.num_threads = 1});
  pull(client, ranks.manifest(), whole(cache_));
  std::ranges::fill(ranks.store(0).shared_pools()[0]->bytes(), std::byte{0x5a});
  const auto stats = pull(client, ranks.manifest(), whole(cache_));
  EXPECT_GT(stats.corrupt_pages, 0);
  EXPECT_EQ(stats.bytes_by_transport.at("local"),
            stats.corrupt_pages * ranks.manifest().page_bytes());
}

TEST_F(SameHostPullTest, MemoryThatIsWrongOnEveryPathFailsThePull) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(transport_, {.num_threads = 2});
  pull(client, ranks.manifest(), whole(cache_));
  ranks.store(0).shared_pools()[0]->bytes()[1000] ^= std::byte{1};
  EXPECT_EQ(failure_of(client, ranks.manifest()), Errc::kCorrupt);
}

TEST_F(SameHostPullTest, AnotherLeaseOrEpochIsRefusedAndGetsNoMemory) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(transport_, {.num_threads = 1});
  pull(client, ranks.manifest(), whole(cache_));
  auto foreign = ranks.manifest();
  foreign.lease_id = "lease-2";
  EXPECT_EQ(failure_of(client, foreign), Errc::kNotFound);
  auto old = ranks.manifest();
  old.epoch = "epoch-0";
  EXPECT_EQ(failure_of(client, old), Errc::kNotFound);
  EXPECT_EQ(ranks.pinned_pages(), 0);

  // At the socket itself, whose name the holder of another lease may know.
  auto connection = *transport_.connect(ranks.manifest().shards[0].address, ample());
  const PageRun run{.layer = 0, .kv_head = 0, .first_page = 0, .num_pages = 1};
  std::vector<std::byte> page(static_cast<size_t>(ranks.manifest().page_bytes()));
  const auto reply = connection->call(page_request(ranks.manifest(), run, false), page, ample());
  const auto answer = *read_page_reply(*reply, "", run, std::ssize(page));
  const auto socket = *comm::MemfdConnection::open(answer.same_host_socket, ample());
  for (const Manifest& refused : {foreign, old}) {
    const auto text = *socket->call(page_request(refused, run, false), ample());
    EXPECT_EQ(read_place_reply(text, "", run).error().code, Errc::kNotFound);
    EXPECT_TRUE(socket->take_descriptors().empty());
  }
  ASSERT_TRUE(socket->call(page_request(ranks.manifest(), run, false), ample()).ok());
  EXPECT_EQ(socket->take_descriptors().size(), 1u);
  EXPECT_EQ(ranks.pinned_pages(), 1);
}

TEST_F(SameHostPullTest, ARankThatSharesNothingServesOverTheTransport) {
  StoredRanks ranks(transport_, cache_, {.shares_memory = false});
  PullClient client(transport_, {});
  for (int i = 0; i < 2; ++i) {
    const auto stats = pull(client, ranks.manifest(), whole(cache_));
    EXPECT_EQ(stats.bytes_by_transport.at("local"), stats.bytes);
  }
}

TEST_F(SameHostPullTest, AClientThatIsToldNotToStaysWithTheTransport) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(transport_, {.same_host = false});
  for (int i = 0; i < 2; ++i) {
    const auto stats = pull(client, ranks.manifest(), whole(cache_));
    EXPECT_EQ(stats.bytes_by_transport.at("local"), stats.bytes);
  }
}

// As from another host or network namespace, where the name leads nowhere.
TEST_F(SameHostPullTest, ASocketThatLeadsToNobodyIsPassedOver) {
  const FakeRanks away(transport_, {.same_host_socket = "millrace-nobody"});
  PullClient client(transport_, {.num_threads = 2});
  for (int i = 0; i < 2; ++i) {
    const auto stats = pull(client, away.manifest(), whole(away));
    EXPECT_EQ(stats.bytes_by_transport.at("local"), stats.bytes);
  }
}

TEST_F(SameHostPullTest, ARankThatComesBackIsFoundAgain) {
  PullClient client(transport_, {.num_threads = 1});
  for (int life = 0; life < 3; ++life) {
    StoredRanks ranks(transport_, cache_, {});
    pull(client, ranks.manifest(), whole(cache_));
    const auto stats = pull(client, ranks.manifest(), whole(cache_));
    EXPECT_EQ(stats.bytes_by_transport.at("same-host"), stats.bytes);
  }
}

TEST_F(SameHostPullTest, NothingIsPinnedOnceAPullHasEnded) {
  StoredRanks ranks(transport_, cache_, {});
  PullClient client(transport_, {.num_threads = 3, .pages_per_request = 1});
  for (int i = 0; i < 5; ++i) pull(client, ranks.manifest(), whole(cache_));
  while (ranks.pinned_pages() > 0) std::this_thread::yield();  // the ranks hear of it
}

}  // namespace
}  // namespace millrace::kvclient
