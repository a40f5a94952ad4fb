// SPDX-License-Identifier: Apache-2.0
// Caches that are read layer by layer while the prompt is computed.

#include "worker/group/group_service.h"

#include <thread>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "protocol/errc.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using ::testing::HasSubstr;

class StreamingRequestTest : public GroupServiceTest {
 protected:
  // All pages of a layer, from the ranks that serve them.
  Result<std::vector<std::byte>> pull_layer(int32_t layer) {
    kvclient::KvClient client(group().transport(), kvclient::from_protocol(manifest_), {});
    const auto head_bytes = static_cast<size_t>(client.num_pages() * client.page_bytes());
    std::vector<std::byte> pages(4 * head_bytes);
    for (int32_t head = 0; head < 4; ++head) {
      const auto destination =
          std::span(pages).subspan(static_cast<size_t>(head) * head_bytes, head_bytes);
      MR_RETURN_IF_ERROR(client.pull(layer, head, 0, client.num_pages(), destination,
                                     Deadline::after(std::chrono::seconds(60))));
    }
    return pages;
  }
  // Keeps the first manifest. Calls `what` on rank 0's thread for each reported layer, while all
  // ranks wait at the layer's end.
  void at_each_layer(std::function<void(int32_t layer)> what) {
    link().set_on_send([this, what = std::move(what)](const Envelope& sent) {
      if (sent.has_prefill_opened()) manifest_ = sent.prefill_opened().manifest();
      if (sent.has_layer_done()) what(static_cast<int32_t>(sent.layer_done().layer()));
    });
  }

  protocol::Manifest manifest_;
};

TEST_F(StreamingRequestTest, TheManifestComesBeforeTheFirstLayerAndTheResultLast) {
  group().start();
  link().push(streaming_request("a", 300));
  auto done = expect_done();
  const auto sent = link().sent();
  ASSERT_EQ(sent.size(), 5u);
  EXPECT_TRUE(sent[0].has_prefill_started());
  EXPECT_EQ(sent[1].prefill_opened().request_id(), "a");
  EXPECT_EQ(sent[2].layer_done().layer(), 0u);
  EXPECT_EQ(sent[3].layer_done().layer(), 1u);
  EXPECT_TRUE(sent[4].has_prefill_done());
  // What is known early equals what is reported in the end, except for the result.
  const auto& early = sent[1].prefill_opened().manifest();
  EXPECT_TRUE(kvclient::check_manifest(kvclient::from_protocol(early)).ok());
  auto& late = *done.mutable_manifest();
  late.clear_first_token_id();
  late.clear_top_logprobs();
  late.clear_density();
  late.clear_recall();
  late.clear_recall_p01();
  late.clear_dense_for_length();
  late.clear_tiers();
  EXPECT_EQ(early.SerializeAsString(), late.SerializeAsString());
}

TEST_F(StreamingRequestTest, ALayerThatIsReportedIsThereOnAllRanksAndTheNextOneIsNot) {
  options_.grid = {2, 2};
  std::vector<Result<std::vector<std::byte>>> there, not_there;
  at_each_layer([&](int32_t layer) {
    there.push_back(pull_layer(layer));
    if (layer + 1 < 2) not_there.push_back(pull_layer(layer + 1));
  });
  group().start();
  link().push(streaming_request("a", 300));
  manifest_ = expect_done().manifest();
  ASSERT_EQ(there.size(), 2u);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const auto& early = there[static_cast<size_t>(layer)];
    ASSERT_TRUE(early.ok()) << early.error().to_string();
    const auto late = pull_layer(layer);
    ASSERT_TRUE(late.ok()) << late.error().to_string();
    EXPECT_TRUE(*early == *late) << "layer " << layer;
  }
  ASSERT_EQ(not_there.size(), 1u);
  ASSERT_FALSE(not_there[0].ok());
  EXPECT_EQ(not_there[0].error().code, Errc::kUnavailable);
  EXPECT_THAT(not_there[0].error().message,
              HasSubstr("request 'a': layer 1 kv head 0 page 0 is not there yet"));
}

TEST_F(StreamingRequestTest, WhoAsksAgainUntilALayerIsThereGetsTheSameBytesWhileTheGroupComputes) {
  options_.grid = {2, 2};
  std::vector<std::vector<std::byte>> early;
  std::vector<Error> failures;
  std::thread puller;
  link().set_on_send([&](const Envelope& sent) {
    if (!sent.has_prefill_opened()) return;
    manifest_ = sent.prefill_opened().manifest();
    puller = std::thread([&] {
      while (early.size() < 2 && failures.empty()) {
        auto pulled = pull_layer(static_cast<int32_t>(early.size()));
        if (pulled.ok()) {
          early.push_back(*std::move(pulled));
        } else if (!protocol::retriable(pulled.error().code)) {
          failures.push_back(pulled.error());
        }
      }
    });
  });
  group().start();
  link().push(streaming_request("a", 700));
  expect_done();
  puller.join();
  ASSERT_TRUE(failures.empty()) << failures.front().to_string();
  for (const int32_t layer : {0, 1}) {
    EXPECT_TRUE(early[static_cast<size_t>(layer)] == *pull_layer(layer)) << "layer " << layer;
  }
}

TEST_F(StreamingRequestTest, ACancelTakesThePagesFromAPullerInTheMiddle) {
  at_each_layer([&](int32_t layer) {
    EXPECT_EQ(layer, 0);
    const auto pulled = pull_layer(layer);
    EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
    link().push(cancel("a"));
  });
  group().start();
  link().push(streaming_request("a", 300));
  expect_failed("a", Errc::kCancelled, "after layer 1 of 2");
  for (const int32_t layer : {0, 1}) {
    const auto pulled = pull_layer(layer);
    ASSERT_FALSE(pulled.ok());
    EXPECT_EQ(pulled.error().code, Errc::kNotFound);
    EXPECT_THAT(pulled.error().message, HasSubstr("request 'a' is gone: aborted"));
  }
  link().set_on_send({});
  expect_next_request_works();
}

TEST_F(StreamingRequestTest, AReadersLeaseCountsFromTheEndOfThePrefill) {
  at_each_layer([&](int32_t) { group().clock().advance(std::chrono::milliseconds(kLeaseMs)); });
  group().start();
  link().push(streaming_request("a", 300));
  manifest_ = expect_done().manifest();
  group().clock().advance(std::chrono::milliseconds(kLeaseMs - 1));
  EXPECT_TRUE(pull_layer(1).ok());
  group().clock().advance(std::chrono::milliseconds(1));
  EXPECT_EQ(pull_layer(1).error().code, Errc::kNotFound);
}

TEST_F(StreamingRequestTest, OneThatIsRefusedAnnouncesNothing) {
  group().start();
  link().push(prefill_request("held", 200));
  expect_done();
  link().push(streaming_request("big", 890));
  expect_failed("big", Errc::kExhausted, "needs 56 pages");
  for (const auto& envelope : link().sent()) EXPECT_FALSE(envelope.has_prefill_opened());
  expect_next_request_works();
}

}  // namespace
}  // namespace millrace::worker
