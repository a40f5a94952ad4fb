// SPDX-License-Identifier: Apache-2.0
// How a KV server answers headers from the network, well formed or not.

#include "worker/store/kv_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "comm/local/local_transport.h"
#include "kvstore/kv_store.h"
#include "protocol/errc.h"
#include "protocol/kv_messages.pb.h"
#include "tests/unit/kvstore/faulty_memory.h"

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

class KvServerTest : public ::testing::Test {
 protected:
  static inline const kvstore::KvGeometry kGeometry{
      .num_layers = 1, .num_kv_heads = 1, .first_kv_head = 2, .head_dim = 4};

  // A request of three pages, page p filled with p + 1, its digest with p + 0.5.
  void SetUp() override {
    const std::vector<int64_t> pages = {0, 1, 2};
    memory_->addressable = false;
    ASSERT_TRUE(store_->begin_request("a", 192, pages).ok());
    for (const int64_t page : pages) {
      const std::vector<float> digest(4, static_cast<float>(page) + 0.5f);
      const std::vector<std::byte> bytes(static_cast<size_t>(kGeometry.page_bytes()),
                                         static_cast<std::byte>(page + 1));
      ASSERT_TRUE(store_
                      ->write_page("a", {.layer = 0, .kv_head = 2, .page = page}, bytes,
                                   {.min = digest, .max = digest, .radius = digest})
                      .ok());
    }
    ASSERT_TRUE(store_->seal("a", "lease", std::chrono::seconds(60)).ok());
  }

  static protocol::PageRequest request(uint64_t first_page, uint32_t num_pages) {
    protocol::PageRequest request;
    request.set_request_id("a");
    request.set_lease_id("lease");
    request.set_epoch("epoch");
    request.set_kv_head(2);
    request.set_first_page(first_page);
    request.set_num_pages(num_pages);
    return request;
  }
  static protocol::PageRequest naming(std::initializer_list<uint64_t> pages) {
    auto named = request(0, 0);
    for (const uint64_t page : pages) named.add_pages(page);
    return named;
  }
  static protocol::PageRequest scores_of(const std::string& id, uint32_t layer, uint32_t num_layers,
                                         uint32_t kv_head, uint32_t num_kv_heads) {
    auto scores = request(0, 0);
    scores.set_request_id(id);
    scores.set_layer(layer);
    scores.set_kv_head(kv_head);
    scores.mutable_scores()->set_num_layers(num_layers);
    scores.mutable_scores()->set_num_kv_heads(num_kv_heads);
    return scores;
  }
  void add_scored(const std::string& id, const std::vector<float>& scores) {
    const auto pages = kvstore::consecutive_pages(0, std::ssize(scores));
    const std::vector<std::byte> bytes(static_cast<size_t>(kGeometry.page_bytes()));
    const std::vector<float> digest(4);
    ASSERT_TRUE(store_->begin_request(id, 64 * std::ssize(scores), pages).ok());
    for (const int64_t page : pages) {
      ASSERT_TRUE(store_
                      ->write_page(id, {.layer = 0, .kv_head = 2, .page = page}, bytes,
                                   {.min = digest, .max = digest, .radius = digest})
                      .ok());
    }
    ASSERT_TRUE(store_->set_scores(id, 0, 2, scores).ok());
    ASSERT_TRUE(store_->seal(id, "lease", std::chrono::seconds(60)).ok());
  }
  protocol::PageReply ask(const std::string& header) {
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    auto connection = transport_.connect(server_->address(), deadline);
    payload_.assign(static_cast<size_t>(3 * kGeometry.page_bytes()), std::byte{0xee});
    auto reply = (*connection)->call(header, payload_, deadline);
    EXPECT_TRUE(reply.ok());
    protocol::PageReply parsed;
    EXPECT_TRUE(parsed.ParseFromString(reply->header));
    return parsed;
  }
  void expect_refused(const std::string& header, Errc code, const std::string& why) {
    const auto reply = ask(header);
    EXPECT_EQ(reply.error().code(), static_cast<int>(code)) << reply.error().message();
    EXPECT_THAT(reply.error().message(), HasSubstr(why));
    EXPECT_EQ(reply.pages_size(), 0);
    EXPECT_EQ(payload_.front(), std::byte{0xee});
  }

  comm::LocalTransport transport_;
  // A device that the host cannot address, so its pages are read.
  std::shared_ptr<kvstore::Faults> memory_ = std::make_shared<kvstore::Faults>();
  std::unique_ptr<kvstore::KvStore> store_ = *kvstore::make_kv_store(
      {.device_bytes = 8 * kGeometry.page_bytes(),
       .host_bytes = 8 * kGeometry.record_bytes(),
       .geometry = kGeometry},
      Clock::steady(),
      std::make_unique<kvstore::FaultyMemory>(
          *kvstore::MemoryTier::allocate(8, kGeometry.page_bytes()), memory_));
  std::unique_ptr<KvServer> server_ =
      *KvServer::start(transport_, *store_, "epoch", "127.0.0.1", 0);
  std::vector<std::byte> payload_;
};

TEST_F(KvServerTest, AnswersPagesInOrder) {
  const auto reply = ask(request(1, 2).SerializeAsString());
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.pages_size(), 2);
  EXPECT_EQ(payload_.front(), std::byte{2});
  EXPECT_EQ(payload_[static_cast<size_t>(kGeometry.page_bytes())], std::byte{3});
}

TEST_F(KvServerTest, AnswersDigestsWithoutReadingPages) {
  auto digests = request(1, 2);
  digests.set_digests_only(true);
  const auto reply = ask(digests.SerializeAsString());
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.pages_size(), 2);
  EXPECT_EQ(memory_->num_reads, 0);
  std::vector<float> values(2 * 3 * 4);
  std::memcpy(values.data(), payload_.data(), values.size() * sizeof(float));
  EXPECT_THAT(std::span(values).first(12), ::testing::Each(1.5f));
  EXPECT_THAT(std::span(values).last(12), ::testing::Each(2.5f));
  EXPECT_EQ(payload_[values.size() * sizeof(float)], std::byte{0xee});
}

TEST_F(KvServerTest, GarbageIsRefused) {
  expect_refused("\xff\xff\xff\xff", Errc::kInvalidArgument, "4 bytes is not a page request");
  expect_refused("", Errc::kNotFound, "epoch ''");
}

TEST_F(KvServerTest, NoPagesOrTooManyAreRefused) {
  expect_refused(request(0, 0).SerializeAsString(), Errc::kInvalidArgument, "no pages");
  expect_refused(request(0, 2049).SerializeAsString(), Errc::kTooLarge, "limit 2048");
}

// Pages of 64 KiB: 1024 of them fill a reply. The store has none, and would say so if it were
// asked.
TEST(KvServerLimits, MorePagesThanAReplyCarriesAreRefusedBeforeTheStoreIsAsked) {
  const kvstore::KvGeometry geometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 128};
  const auto store =
      *kvstore::make_kv_store({.host_bytes = 4 << 20, .geometry = geometry}, Clock::steady());
  comm::LocalTransport transport;
  const auto server = *KvServer::start(transport, *store, "epoch", "127.0.0.1", 0);
  protocol::PageRequest request;
  request.set_epoch("epoch");
  const auto error_of = [&](uint32_t num_pages, bool digests_only) {
    request.set_num_pages(num_pages);
    request.set_digests_only(digests_only);
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    auto connection = *transport.connect(server->address(), deadline);
    const auto reply = connection->call(request.SerializeAsString(), {}, deadline);
    protocol::PageReply parsed;
    EXPECT_TRUE(reply.ok() && parsed.ParseFromString(reply->header));
    return parsed.error();
  };
  EXPECT_EQ(error_of(1024, false).code(), static_cast<int>(Errc::kNotFound));
  EXPECT_EQ(error_of(1025, false).code(), static_cast<int>(Errc::kTooLarge));
  EXPECT_THAT(error_of(1025, false).message(),
              HasSubstr("1025 pages have 67174400 bytes, a reply holds at most 67108864"));
  EXPECT_EQ(error_of(2048, true).code(), static_cast<int>(Errc::kNotFound));
}

TEST_F(KvServerTest, PagesThatAreNotThereAreRefused) {
  expect_refused(request(2, 2).SerializeAsString(), Errc::kNotFound,
                 "page 3 is not among the 3 of 3");
  expect_refused(request(uint64_t{1} << 63, 1).SerializeAsString(), Errc::kNotFound,
                 "is not among");
  expect_refused(request((uint64_t{1} << 63) - 1, 2).SerializeAsString(), Errc::kNotFound,
                 "is not among");
  expect_refused(request(~uint64_t{0}, 2).SerializeAsString(), Errc::kNotFound,
                 "page -1 is not among");
  auto head = request(0, 1);
  head.set_kv_head(0xffffffff);
  expect_refused(head.SerializeAsString(), Errc::kNotFound, "kv head");
  auto layer = request(0, 1);
  layer.set_layer(0xffffffff);
  expect_refused(layer.SerializeAsString(), Errc::kNotFound, "layer");
}

TEST_F(KvServerTest, AnswersThePagesThatAreNamed) {
  const auto reply = ask(naming({0, 2}).SerializeAsString());
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.pages_size(), 2);
  EXPECT_EQ(payload_.front(), std::byte{1});
  EXPECT_EQ(payload_[static_cast<size_t>(kGeometry.page_bytes())], std::byte{3});

  auto digests = naming({0, 2});
  digests.set_digests_only(true);
  EXPECT_EQ(ask(digests.SerializeAsString()).pages_size(), 2);
  float last = 0;
  std::memcpy(&last, payload_.data() + 3 * 4 * sizeof(float), sizeof(last));
  EXPECT_EQ(last, 2.5f);
}

TEST_F(KvServerTest, NamedPagesThatDoNotAscendOrAreNotThereAreRefused) {
  const auto refused = [&](std::initializer_list<uint64_t> pages, Errc code,
                           const std::string& why) {
    expect_refused(naming(pages).SerializeAsString(), code, why);
  };
  refused({1, 1}, Errc::kInvalidArgument, "page 1 after 1; pages must ascend");
  refused({2, 0}, Errc::kInvalidArgument, "page 0 after 2; pages must ascend");
  refused({0, 3}, Errc::kNotFound, "page 3 is not among the 3 of 3");
  refused({0, uint64_t{1} << 63}, Errc::kInvalidArgument, "must ascend");
  refused({~uint64_t{0}}, Errc::kNotFound, "page -1 is not among");
  auto both = naming({0, 2});
  both.set_num_pages(1);
  expect_refused(both.SerializeAsString(), Errc::kInvalidArgument,
                 "2 pages are named, and 1 from 0");
  auto foreign = naming({0});
  foreign.set_lease_id("another");
  expect_refused(foreign.SerializeAsString(), Errc::kNotFound, "lease");
  foreign.set_epoch("before");
  expect_refused(foreign.SerializeAsString(), Errc::kNotFound, "epoch 'before' has ended");
  auto many = naming({});
  for (uint64_t page = 0; page < 2049; ++page) many.add_pages(page);
  expect_refused(many.SerializeAsString(), Errc::kTooLarge, "2049 pages requested at once");
}

TEST_F(KvServerTest, AnswersScoresOfEveryPageAndReadsNone) {
  add_scored("b", {0.5f, 0.25f, 0.125f});
  const auto reply = ask(scores_of("b", 0, 1, 2, 1).SerializeAsString());
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.pages_size(), 0);
  EXPECT_EQ(memory_->num_reads, 0);
  std::vector<float> scores(3);
  std::memcpy(scores.data(), payload_.data(), 12);
  EXPECT_THAT(scores, ::testing::ElementsAre(0.5f, 0.25f, 0.125f));
  EXPECT_EQ(payload_[12], std::byte{0xee});
}

TEST_F(KvServerTest, ScoresOfWhatIsNotThereAreRefused) {
  add_scored("b", {0.5f, 0.25f, 0.125f});
  const auto refused = [&](const protocol::PageRequest& request, Errc code, const char* why) {
    expect_refused(request.SerializeAsString(), code, why);
  };
  refused(scores_of("b", 0, 0, 2, 1), Errc::kInvalidArgument, "scores of 0 layers");
  refused(scores_of("b", 0, 1, 2, 0xffffffff), Errc::kInvalidArgument, "-1 kv heads");
  refused(scores_of("b", 0, 2, 2, 1), Errc::kNotFound, "layer 1 of 1");
  refused(scores_of("b", 0x7fffffff, 2, 2, 1), Errc::kNotFound, "layer 2147483647 of 1");
  refused(scores_of("b", 0, 1, 2, 2), Errc::kNotFound, "kv head 3");
  auto foreign = scores_of("b", 0, 1, 2, 1);
  foreign.set_lease_id("another");
  refused(foreign, Errc::kNotFound, "lease");
  foreign.set_epoch("before");
  refused(foreign, Errc::kNotFound, "epoch 'before' has ended");

  const std::vector<int64_t> pages = {0};
  ASSERT_TRUE(store_->begin_request("c", 64, pages).ok());
  ASSERT_TRUE(store_->open("c", "lease").ok());
  refused(scores_of("c", 0, 1, 2, 1), Errc::kUnavailable, "page 0 is not there yet");
}

TEST_F(KvServerTest, APageOfAnOpenRequestIsServedOnceItIsThereAndRefusedRetriablyBefore) {
  const std::vector<int64_t> pages = {0};
  ASSERT_TRUE(store_->begin_request("b", 64, pages).ok());
  ASSERT_TRUE(store_->open("b", "lease-b").ok());
  auto first = request(0, 1);
  first.set_request_id("b");
  first.set_lease_id("lease-b");
  expect_refused(first.SerializeAsString(), Errc::kUnavailable,
                 "request 'b': layer 0 kv head 2 page 0 is not there yet");
  EXPECT_TRUE(protocol::retriable(Errc::kUnavailable));

  const std::vector<std::byte> bytes(static_cast<size_t>(kGeometry.page_bytes()), std::byte{9});
  const std::vector<float> digest(4), score = {1.0f};
  ASSERT_TRUE(store_
                  ->write_page("b", {.layer = 0, .kv_head = 2, .page = 0}, bytes,
                               {.min = digest, .max = digest, .radius = digest})
                  .ok());
  ASSERT_TRUE(store_->set_scores("b", 0, 2, score).ok());
  const auto reply = ask(first.SerializeAsString());
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), payload_.begin()));

  store_->abort("b");
  expect_refused(first.SerializeAsString(), Errc::kNotFound, "request 'b' is gone: aborted");
}

}  // namespace
}  // namespace millrace::worker
