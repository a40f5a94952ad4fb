// SPDX-License-Identifier: Apache-2.0
// What a decode node is told if the bytes, the lease or the question are wrong.

#include "kvclient/kv_client.h"
#include "common/errc_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "kvclient/manifest/manifest_proto.h"
#include "kvclient/pull_client.h"
#include "protocol/kv_messages.pb.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::kvclient {
namespace {

using test::kTinyPageBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class KvClientTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11, model().path());
  }
  static test::TempDirectory& model() {
    static test::TempDirectory directory;
    return directory;
  }

  Manifest manifest() const { return from_protocol(served_.manifest()); }
  // Pulls pages of layer 1, kv head 3, into pages_.
  Result<std::vector<PulledPage>> pull(KvClient& client, int64_t first, int64_t count) {
    pages_.assign(static_cast<size_t>(count * kTinyPageBytes), std::byte{0xee});
    return client.pull(1, 3, first, count, pages_, ample());
  }
  // Of one layer and kv head, into `memory` of five pages.
  static PullRequest block_request(std::vector<std::byte>& memory) {
    return {.num_kv_heads = 1,
            .dtype = DType::kFloat32,
            .head_dim = 16,
            .num_tokens = 300,
            .block_ids = {0, 1, 2, 3, 4},
            .layers = {{memory.data(), memory.data() + kTinyPageBytes / 2, kTinyPageBytes,
                        /*head_stride=*/0, /*token_stride=*/64}}};
  }
  void expect_pages(int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto expected = served_.expected_page(1, 3, first + i);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                             pages_.begin() + static_cast<ptrdiff_t>(i * kTinyPageBytes)))
          << "page " << first + i;
    }
  }
  void expect_refused(const Manifest& manifest, Errc code, const std::string& why) {
    KvClient client(transport_, manifest, {});
    const auto pulled = pull(client, 0, 1);
    ASSERT_FALSE(pulled.ok());
    EXPECT_EQ(pulled.error().code, code) << pulled.error().to_string();
    EXPECT_THAT(pulled.error().message, HasSubstr(why));
  }

  testing::FakeClock clock_;
  comm::LocalTransport transport_;
  test::ServedPrompt served_{
      transport_,
      clock_,
      {.model_directory = model().path(), .grid = {2, 1}, .tokens = test::random_tokens(300, 101)}};
  std::vector<std::byte> pages_;
};

TEST_F(KvClientTest, AFlippedByteIsSeenAndThePageFetchedAgain) {
  // Call 0 brings pages 0 to 4; the damaged byte is in page 2. Call 1 fetches only that page.
  comm::FaultTransport faulty(
      transport_,
      {{{.kind = comm::FaultKind::kFlipByte, .first_call = 0, .byte = 2 * kTinyPageBytes + 77}}});
  KvClient client(faulty, manifest(), {});
  const auto pulled = pull(client, 0, 5);
  ASSERT_TRUE(pulled.ok()) << pulled.error().to_string();
  expect_pages(0, 5);
  EXPECT_EQ(client.stats().corrupt_pages, 1);
  EXPECT_EQ(client.stats().pages, 5);
  EXPECT_EQ(client.stats().bytes, 6 * kTinyPageBytes);
  EXPECT_EQ(faulty.num_calls(), 2);
}

TEST_F(KvClientTest, APageThatArrivesWrongEveryTimeIsAnErrorThatNamesIt) {
  comm::FaultTransport faulty(
      transport_,
      {{{.kind = comm::FaultKind::kFlipByte, .first_call = 0, .num_calls = 100, .byte = 5}}});
  KvClient client(faulty, manifest(), {.max_refetches = 2});
  const auto pulled = pull(client, 1, 3);
  ASSERT_FALSE(pulled.ok());
  EXPECT_EQ(pulled.error().code, Errc::kCorrupt);
  EXPECT_THAT(pulled.error().message,
              AllOf(HasSubstr("layer 1, kv head 3, page 1 from"), HasSubstr("after 3 fetches")));
  EXPECT_EQ(client.stats().corrupt_pages, 3);
  EXPECT_EQ(faulty.num_calls(), 3);
}

TEST_F(KvClientTest, AnErrorOfTheTransportLeavesAClientThatCanPullAgain) {
  comm::FaultTransport faulty(transport_,
                              {{{.kind = comm::FaultKind::kLosePeer, .first_call = 0},
                                {.kind = comm::FaultKind::kDropReply, .first_call = 1}}});
  KvClient client(faulty, manifest(), {});
  EXPECT_EQ(pull(client, 0, 5).error().code, Errc::kPeerLost);
  EXPECT_EQ(pull(client, 0, 5).error().code, Errc::kDeadlineExceeded);
  ASSERT_TRUE(pull(client, 0, 5).ok());
  expect_pages(0, 5);
}

TEST_F(KvClientTest, AForeignLeaseIsRefused) {
  auto manifest = this->manifest();
  manifest.lease_id = "stolen";
  expect_refused(manifest, Errc::kNotFound, "lease 'stolen' is not its lease");
}

TEST_F(KvClientTest, AnUnknownRequestIsRefused) {
  auto manifest = this->manifest();
  manifest.request_id = "prompt-2";
  expect_refused(manifest, Errc::kNotFound, "request 'prompt-2' is unknown");
}

TEST_F(KvClientTest, AManifestOfAnEarlierLifeOfTheGroupIsRefused) {
  auto manifest = this->manifest();
  manifest.epoch = "epoch-0";
  expect_refused(manifest, Errc::kNotFound, "epoch 'epoch-0' has ended; this group's is 'epoch-1'");
}

TEST_F(KvClientTest, AnExpiredLeaseIsRefusedBeforeAndAfterItsPagesAreFreed) {
  clock_.advance(test::kServedLease - std::chrono::seconds(1));
  KvClient client(transport_, manifest(), {});
  ASSERT_TRUE(pull(client, 0, 1).ok());
  clock_.advance(std::chrono::seconds(1));
  expect_refused(manifest(), Errc::kNotFound, "expired");
  for (int rank = 0; rank < served_.num_ranks(); ++rank) {
    EXPECT_EQ(served_.store(rank).expire_leases(), 1);
    for (const auto& tier : served_.store(rank).stats().tiers) EXPECT_EQ(tier.slots_used, 0);
  }
  expect_refused(manifest(), Errc::kNotFound, "is gone: expired");
}

TEST_F(KvClientTest, PagesOutsideTheManifestAreRefusedBeforeAnyoneIsAsked) {
  comm::FaultTransport counting(transport_, {});
  KvClient client(counting, manifest(), {});
  struct Case {
    int32_t layer, kv_head;
    int64_t first, count;
  };
  for (const Case& c : {Case{2, 0, 0, 1},
                        {-1, 0, 0, 1},
                        {0, 4, 0, 1},
                        {0, -1, 0, 1},
                        {0, 0, 5, 1},
                        {0, 0, 4, 2},
                        {0, 0, -1, 1}}) {
    SCOPED_TRACE(fmt::format("layer {} head {} pages {}+{}", c.layer, c.kv_head, c.first, c.count));
    std::vector<std::byte> pages(static_cast<size_t>(c.count * kTinyPageBytes));
    const auto pulled = client.pull(c.layer, c.kv_head, c.first, c.count, pages, ample());
    ASSERT_FALSE(pulled.ok());
    EXPECT_EQ(pulled.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(pulled.error().message, HasSubstr("2 layers, 4 kv heads, 5 pages"));
    EXPECT_FALSE(client.pull_digests(c.layer, c.kv_head, c.first, c.count, ample()).ok());
  }
  EXPECT_EQ(counting.num_calls(), 0);
}

TEST_F(KvClientTest, ARankAskedForPagesItDoesNotHoldSaysSo) {
  // A manifest that lies: rank 0's server is named for rank 1's heads.
  auto manifest = this->manifest();
  manifest.shards[1].address = manifest.shards[0].address;
  expect_refused(manifest, Errc::kNotFound, "kv head");
}

TEST_F(KvClientTest, ARankWithoutMemoryToReadIntoIsAskedAgain) {
  int num_asked = 0;
  protocol::PageReply full, gone;
  full.mutable_error()->set_code(errc_to_wire(Errc::kExhausted));
  gone.mutable_error()->set_code(errc_to_wire(Errc::kNotFound));
  const auto server = *transport_.listen("127.0.0.1", 0, [&](std::string_view) {
    return comm::TransportReply{.header = (++num_asked < 3 ? full : gone).SerializeAsString()};
  });
  auto manifest = this->manifest();
  for (auto& shard : manifest.shards) shard.address = server->address();
  KvClient client(transport_, manifest, {});
  EXPECT_EQ(pull(client, 0, 1).error().code, Errc::kNotFound);
  EXPECT_EQ(num_asked, 3);
}

// As of a rank whose group was replaced by another at the same address.
TEST_F(KvClientTest, ARankThatDoesNotKnowTheLeaseIsToldWithTheEpochOfTheManifest) {
  comm::TcpTransport transport({});
  const auto server = *transport.listen(
      "127.0.0.1", 0, [](std::string_view) { return comm::TransportReply(); },
      [](std::string_view) { return false; });
  auto manifest = this->manifest();
  for (auto& shard : manifest.shards) shard.address = server->address();
  const auto is_told = [](const Error& why) {
    EXPECT_EQ(why.code, Errc::kNotFound);
    EXPECT_THAT(why.message, AllOf(HasSubstr("no such lease"), HasSubstr("epoch 'epoch-1'")));
  };
  KvClient client(transport, manifest, {});
  is_told(pull(client, 0, 1).error());
  PullClient pulls(transport, {.num_threads = 1});
  std::vector<std::byte> memory(static_cast<size_t>(5 * kTinyPageBytes));
  const auto pull = *pulls.start(manifest, block_request(memory));
  is_told(pull->wait(ample())->error());
}

// The same refusals, through the client that pulls into blocks.
TEST_F(KvClientTest, APullWithAForeignLeaseAStaleEpochOrOfAnUnknownRequestFails) {
  PullClient client(transport_, {.num_threads = 2});
  const auto end_of = [&](const Manifest& manifest) {
    std::vector<std::byte> memory(static_cast<size_t>(5 * kTinyPageBytes));
    const auto pull = *client.start(manifest, block_request(memory));
    const auto end = *pull->wait(ample());
    return end.ok() ? "ok" : std::string(errc_name(end.error().code)) + ": " + end.error().message;
  };
  EXPECT_EQ(end_of(manifest()), "ok");
  auto foreign = manifest();
  foreign.lease_id = "stolen";
  EXPECT_THAT(end_of(foreign), AllOf(HasSubstr("not_found"), HasSubstr("lease 'stolen'")));
  auto stale = manifest();
  stale.epoch = "epoch-0";
  EXPECT_THAT(end_of(stale), AllOf(HasSubstr("not_found"), HasSubstr("'epoch-0' has ended")));
  auto unknown = manifest();
  unknown.request_id = "prompt-2";
  EXPECT_THAT(end_of(unknown), AllOf(HasSubstr("not_found"), HasSubstr("prompt-2")));
  clock_.advance(test::kServedLease);
  EXPECT_THAT(end_of(manifest()), AllOf(HasSubstr("not_found"), HasSubstr("expired")));
}

class CheckManifestTest : public KvClientTest {
 protected:
  void expect_bad(const Manifest& manifest, Errc code, const std::string& why) {
    const auto checked = check_manifest(manifest);
    ASSERT_FALSE(checked.ok()) << why;
    EXPECT_EQ(checked.error().code, code) << checked.error().to_string();
    EXPECT_THAT(checked.error().message, HasSubstr(why));
  }
};

TEST_F(CheckManifestTest, AcceptsWhatAGroupWrites) {
  const auto checked = check_manifest(manifest());
  EXPECT_TRUE(checked.ok()) << checked.error().to_string();
}

TEST_F(CheckManifestTest, RefusesWhatThisClientCannotRead) {
  auto manifest = this->manifest();
  manifest.version = 5;
  expect_bad(manifest, Errc::kUnsupported, "version is 5");
  manifest = this->manifest();
  manifest.layout.page_layout = "v-then-k";
  expect_bad(manifest, Errc::kUnsupported, "v-then-k");
  manifest = this->manifest();
  manifest.layout.dtype = "int8";
  expect_bad(manifest, Errc::kUnsupported, "int8");
  manifest = this->manifest();
  manifest.layout.page_tokens = 128;
  expect_bad(manifest, Errc::kUnsupported, "pages have 128 tokens");
}

TEST_F(CheckManifestTest, RefusesNumbersThatNoModelHas) {
  for (const int32_t layers : {0, 1 << 20}) {
    auto manifest = this->manifest();
    manifest.layout.num_layers = layers;
    expect_bad(manifest, Errc::kInvalidArgument, fmt::format("{} layers", layers));
  }
  for (const int64_t tokens : {int64_t{0}, int64_t{1} << 40}) {
    auto manifest = this->manifest();
    manifest.num_tokens = tokens;
    expect_bad(manifest, Errc::kInvalidArgument, fmt::format("{} tokens", tokens));
  }
}

TEST_F(CheckManifestTest, RefusesShardsThatDoNotCoverTheCache) {
  auto manifest = this->manifest();
  manifest.shards.pop_back();
  expect_bad(manifest, Errc::kInvalidArgument, "kv head 2: no shard holds token 0");
  manifest = this->manifest();
  manifest.shards[0].token_ranges[0].end = 256;
  expect_bad(manifest, Errc::kInvalidArgument, "kv head 0: no shard holds token 256");
  manifest = this->manifest();
  manifest.shards[1].num_kv_heads = 7;
  expect_bad(manifest, Errc::kInvalidArgument, "kv heads [2, 9)");
  manifest = this->manifest();
  manifest.shards[0].token_ranges[0].end = int64_t{1} << 40;
  expect_bad(manifest, Errc::kInvalidArgument, "tokens [0, 1099511627776)");
}

}  // namespace
}  // namespace millrace::kvclient
