// What a group answers to whatever the coordinator says, and what stays usable afterwards.

#include "worker/group_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "decode/kv_client.h"
#include "protocol/errc.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/worker/running_group.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using test::RunningGroup;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Kind = ControlEvent::Kind;

constexpr uint64_t kLeaseMs = 20'000;

Envelope prefill_request(const std::string& id, int num_tokens, const std::string& plan = "",
                         uint64_t deadline_ms = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < num_tokens; ++i) tokens.push_back((i * 7 + 3) % 101);
  Envelope envelope;
  auto& request = *envelope.mutable_prefill_request();
  request.set_request_id(id);
  request.set_prompt_token_ids(encode_token_ids(tokens));
  request.set_head_plan(plan);
  request.set_deadline_ms(deadline_ms);
  request.set_lease_ms(kLeaseMs);
  return envelope;
}

Envelope streaming_request(const std::string& id, int num_tokens) {
  auto envelope = prefill_request(id, num_tokens);
  envelope.mutable_prefill_request()->set_handover(protocol::HANDOVER_STREAMING);
  return envelope;
}

std::vector<std::string> phases_of(const protocol::PrefillDone& done) {
  std::vector<std::string> names;
  for (const auto& time : done.phases()) names.push_back(time.phase());
  return names;
}

std::vector<std::string> stages_of(const protocol::PrefillDone& done) {
  std::vector<std::string> names;
  for (const auto& time : done.stages()) {
    EXPECT_GT(time.seconds(), 0) << time.stage();
    names.push_back(time.stage());
  }
  return names;
}

Envelope cancel(const std::string& id) {
  Envelope envelope;
  envelope.mutable_cancel()->set_request_id(id);
  return envelope;
}

Envelope renew(const protocol::Manifest& manifest, uint64_t lease_ms) {
  Envelope envelope;
  auto& renewal = *envelope.mutable_lease_renew();
  renewal.set_request_id(manifest.request_id());
  renewal.set_lease_id(manifest.lease_id());
  renewal.set_lease_ms(lease_ms);
  return envelope;
}

Envelope release(const protocol::Manifest& manifest) {
  Envelope envelope;
  envelope.mutable_lease_release()->set_request_id(manifest.request_id());
  envelope.mutable_lease_release()->set_lease_id(manifest.lease_id());
  return envelope;
}

class GroupServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11, model().path());
  }
  static test::TempDirectory& model() {
    static test::TempDirectory directory;
    return directory;
  }

  RunningGroup& group() {
    if (group_ == nullptr) {
      options_.model_directory = model().path();
      group_ = std::make_unique<RunningGroup>(options_);
    }
    return *group_;
  }
  test::ScriptedLink& link() { return group().link(); }

  // After layer 0 of `id`, before the group looks at its messages.
  void after_first_layer_of(const std::string& id, std::function<void()> what) {
    link().set_on_send([id, what = std::move(what)](const Envelope& sent) {
      if (sent.has_layer_done() && sent.layer_done().request_id() == id &&
          sent.layer_done().layer() == 0) {
        what();
      }
    });
  }

  protocol::PrefillDone expect_done() {
    const auto done = link().wait_for(Envelope::kPrefillDone);
    EXPECT_TRUE(done.has_value()) << "no prefill_done";
    return done ? done->prefill_done() : protocol::PrefillDone();
  }
  // The error the group answers next; its code and a part of its message.
  void expect_failed(const std::string& id, Errc code, const std::string& why) {
    const auto failed = link().wait_for(Envelope::kPrefillFailed);
    ASSERT_TRUE(failed.has_value()) << "no prefill_failed: " << why;
    EXPECT_EQ(failed->prefill_failed().request_id(), id);
    EXPECT_EQ(failed->prefill_failed().error().code(), static_cast<int>(code));
    EXPECT_THAT(failed->prefill_failed().error().message(), HasSubstr(why));
  }
  void expect_next_request_works() {
    link().push(prefill_request("next", 130));
    EXPECT_EQ(expect_done().request_id(), "next");
  }
  protocol::LeaseReply expect_lease_reply() {
    const auto reply = link().wait_for(Envelope::kLeaseReply);
    EXPECT_TRUE(reply.has_value()) << "no lease_reply";
    return reply ? reply->lease_reply() : protocol::LeaseReply();
  }

  Result<void> pull_a_page(const protocol::Manifest& manifest) {
    decode::KvClient client(group().transport(), manifest, {});
    std::vector<std::byte> page(static_cast<size_t>(client.page_bytes()));
    MR_RETURN_IF_ERROR(client.pull(0, 3, 1, 1, page, Deadline::after(std::chrono::seconds(60))));
    return {};
  }

  RunningGroup::Options options_;
  std::unique_ptr<RunningGroup> group_;
};

TEST_F(GroupServiceTest, ARequestIsStartedReportedLayerByLayerAndDone) {
  group().start();
  link().push(prefill_request("a", 300));
  const auto done = expect_done();
  const auto sent = link().sent();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[0].prefill_started().request_id(), "a");
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const auto& report = sent[1 + layer].layer_done();
    EXPECT_EQ(report.request_id(), "a");
    EXPECT_EQ(report.layer(), layer);
    EXPECT_EQ(report.num_layers(), 2u);
    EXPECT_EQ(report.density(), 1.0);
  }
  // Pages, layers, heads; K and V of 64 tokens in 16 dimensions.
  EXPECT_EQ(done.stored().bytes(), 5u * 2 * 4 * (2 * 64 * 16 * 4));
  EXPECT_EQ(done.stored().while_computing(), 0u);  // a CPU stores a layer before the next
  EXPECT_THAT(phases_of(done), AllOf(IsSupersetOf({"qkv", "attention", "store"}),
                                     Not(Contains("generate"))));  // nobody asked for tokens
  EXPECT_THAT(stages_of(done), ElementsAre("start", "layers", "tail", "close"));
  const auto& manifest = done.manifest();
  const auto checked = decode::check_manifest(manifest);
  EXPECT_TRUE(checked.ok()) << checked.error().to_string();
  EXPECT_EQ(manifest.request_id(), "a");
  EXPECT_EQ(manifest.num_tokens(), 300u);
  EXPECT_EQ(manifest.lease_ms(), kLeaseMs);
  EXPECT_EQ(manifest.epoch(), "epoch-1");
  EXPECT_EQ(manifest.shards_size(), 2);
  EXPECT_EQ(manifest.top_logprobs_size(), 10);
  EXPECT_EQ(manifest.top_logprobs(0).token_id(), manifest.first_token_id());
  const auto pulled = pull_a_page(manifest);
  EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
}

class StreamingRequestTest : public GroupServiceTest {
 protected:
  // All pages of a layer, by whoever serves them.
  Result<std::vector<std::byte>> pull_layer(int32_t layer) {
    decode::KvClient client(group().transport(), manifest_, {});
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
  // Keeps the manifest that comes first; `what` is called on rank 0's thread with each layer that
  // is reported, while all ranks wait at its end.
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
  // What is known early is what is said in the end, but for the result.
  const auto& early = sent[1].prefill_opened().manifest();
  EXPECT_TRUE(decode::check_manifest(early).ok());
  auto& late = *done.mutable_manifest();
  late.clear_first_token_id();
  late.clear_top_logprobs();
  late.clear_density();
  late.clear_recall();
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
  link().push(streaming_request("big", 2000));
  expect_failed("big", Errc::kExhausted, "needs 128 pages");
  for (const auto& envelope : link().sent()) EXPECT_FALSE(envelope.has_prefill_opened());
  expect_next_request_works();
}

TEST_F(GroupServiceTest, APromptShorterThanTheGridNamesOnlyRanksThatHoldSomeOfIt) {
  options_.grid = {2, 2};
  group().start();
  link().push(prefill_request("short", 10));
  const auto manifest = expect_done().manifest();
  const auto checked = decode::check_manifest(manifest);
  EXPECT_TRUE(checked.ok()) << checked.error().to_string();
  EXPECT_EQ(manifest.shards_size(), 2);
}

TEST_F(GroupServiceTest, ACancelledRequestEndsAtTheNextLayerAndLeavesNothing) {
  after_first_layer_of("a", [&] { link().push(cancel("a")); });
  group().start();
  link().push(prefill_request("a", 300));
  expect_failed("a", Errc::kCancelled, "after layer 1 of 2");
  // Its pages are free again: three times as much as fits at once goes through.
  for (int i = 0; i < 3; ++i) {
    link().push(prefill_request("big", 700));
    const auto done = expect_done();
    link().push(release(done.manifest()));
    EXPECT_FALSE(expect_lease_reply().has_error());
  }
}

TEST_F(GroupServiceTest, ARequestCancelledInTheQueueNeverStarts) {
  link().push(prefill_request("a", 200));
  link().push(prefill_request("b", 200));
  link().push(cancel("b"));
  group().start();
  expect_failed("b", Errc::kCancelled, "before it started");
  EXPECT_EQ(expect_done().request_id(), "a");
  for (const auto& envelope : link().sent()) {
    EXPECT_FALSE(envelope.has_prefill_started() && envelope.prefill_started().request_id() == "b");
  }
}

TEST_F(GroupServiceTest, ADeadlineThatPassesEndsTheRequestRunningOrWaiting) {
  after_first_layer_of("a", [] {
    const auto passed = Deadline::after(std::chrono::milliseconds(150));
    while (!passed.passed()) std::this_thread::yield();
  });
  link().push(prefill_request("a", 200, "", 100));
  link().push(prefill_request("b", 200, "", 100));
  group().start();
  expect_failed("a", Errc::kDeadlineExceeded, "the deadline passed");
  expect_failed("b", Errc::kDeadlineExceeded, "the deadline passed before it started");
  expect_next_request_works();
}

TEST_F(GroupServiceTest, AnUnknownPlanIsAnErrorThatListsTheForms) {
  group().start();
  link().push(prefill_request("a", 200, "diagonal:3"));
  const auto failed = link().wait_for(Envelope::kPrefillFailed);
  ASSERT_TRUE(failed.has_value());
  const auto& error = failed->prefill_failed().error();
  EXPECT_EQ(error.code(), static_cast<int>(Errc::kInvalidArgument));
  EXPECT_THAT(error.message(), AllOf(HasSubstr("diagonal:3"), HasSubstr("dense"),
                                     HasSubstr("vertical-slash"), HasSubstr("adaptive")));
  expect_next_request_works();
}

TEST_F(GroupServiceTest, APlanThatNamesAFileIsRefusedUnread) {
  const test::TempDirectory files;
  const auto plan = files.write("plan.json", R"({"default": "dense"})");
  group().start();
  for (const auto& path : {plan, std::string("plan.json"), std::string("/etc/passwd")}) {
    link().push(prefill_request("a", 200, path));
    expect_failed("a", Errc::kInvalidArgument, "expected one of");
  }
  expect_next_request_works();
}

TEST_F(GroupServiceTest, PromptsThatNoModelTakesAreRefused) {
  group().start();
  link().push(prefill_request("empty", 0));
  expect_failed("empty", Errc::kInvalidArgument, "empty");
  auto odd = prefill_request("odd", 10);
  odd.mutable_prefill_request()->mutable_prompt_token_ids()->push_back('x');
  link().push(odd);
  expect_failed("odd", Errc::kInvalidArgument, "41 bytes");
  auto outside = prefill_request("outside", 10);
  const std::vector<int32_t> tokens = {5, 101};
  outside.mutable_prefill_request()->set_prompt_token_ids(encode_token_ids(tokens));
  link().push(outside);
  expect_failed("outside", Errc::kInvalidArgument, "token id 101 at position 1");
  link().push(prefill_request("long", 40'000));
  expect_failed("long", Errc::kTooLarge, "limit 32768");
  expect_next_request_works();
}

TEST_F(GroupServiceTest, APromptOverTheKvCapacityIsRefusedWithTheNumbers) {
  group().start();
  // 2,000 tokens: 16 pages a rank, of 2 layers and 4 kv heads.
  link().push(prefill_request("big", 2000));
  expect_failed("big", Errc::kExhausted, "needs 128 pages");
  expect_next_request_works();
}

TEST_F(GroupServiceTest, ASecondRequestOfAHeldIdIsRefusedAndTheFirstStaysReadable) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();
  link().push(prefill_request("a", 200));
  expect_failed("a", Errc::kInvalidArgument, "held already");
  const auto pulled = pull_a_page(manifest);
  EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
}

TEST_F(GroupServiceTest, ALeaseIsRenewedAndReleasedByWhoeverHasIt) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();

  group().clock().advance(std::chrono::milliseconds(kLeaseMs - 1));
  link().push(renew(manifest, 5000));
  const auto renewed = expect_lease_reply();
  EXPECT_FALSE(renewed.has_error()) << renewed.error().message();
  EXPECT_EQ(renewed.expires_in_ms(), 5000u);
  group().clock().advance(std::chrono::milliseconds(4999));
  EXPECT_TRUE(pull_a_page(manifest).ok());

  link().push(release(manifest));
  EXPECT_FALSE(expect_lease_reply().has_error());
  EXPECT_EQ(pull_a_page(manifest).error().code, Errc::kNotFound);
  link().push(renew(manifest, 5000));
  EXPECT_EQ(expect_lease_reply().error().code(), static_cast<int>(Errc::kNotFound));
}

TEST_F(GroupServiceTest, AForeignLeaseIsNeitherRenewedNorReleased) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();
  auto foreign = manifest;
  foreign.set_lease_id("stolen");
  for (const auto& change : {renew(foreign, 5000), release(foreign)}) {
    link().push(change);
    const auto reply = expect_lease_reply();
    EXPECT_EQ(reply.request_id(), "a");
    EXPECT_EQ(reply.error().code(), static_cast<int>(Errc::kNotFound));
    EXPECT_EQ(reply.expires_in_ms(), 0u);
  }
  EXPECT_TRUE(pull_a_page(manifest).ok());
}

TEST_F(GroupServiceTest, ALeaseLongerThanTheGroupGrantsIsCut) {
  group().start();
  link().push(prefill_request("a", 200));
  link().push(renew(expect_done().manifest(), uint64_t{1} << 60));
  const auto reply = expect_lease_reply();
  EXPECT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.expires_in_ms(), 3'600'000u);
}

TEST_F(GroupServiceTest, ALeaseChangesWhileAnotherRequestRuns) {
  protocol::Manifest first;
  after_first_layer_of("b", [&] { link().push(release(first)); });
  group().start();
  link().push(prefill_request("a", 200));
  first = expect_done().manifest();
  link().push(prefill_request("b", 200));
  EXPECT_FALSE(expect_lease_reply().has_error());
  // Answered between the layers, so before the second request is done.
  EXPECT_EQ(expect_done().request_id(), "b");
  EXPECT_EQ(pull_a_page(first).error().code, Errc::kNotFound);
}

TEST_F(GroupServiceTest, ADisconnectCancelsWhatRunsAndForgetsWhatWaits) {
  after_first_layer_of("a", [&] { link().push(Kind::kDisconnected, "connection reset"); });
  link().push(prefill_request("a", 200));
  link().push(prefill_request("b", 200));
  group().start();
  expect_failed("a", Errc::kCancelled, "cancelled");
  link().push(Kind::kConnected);
  expect_next_request_works();
  for (const auto& envelope : link().sent()) {
    EXPECT_FALSE(envelope.has_prefill_started() && envelope.prefill_started().request_id() == "b");
  }
}

TEST_F(GroupServiceTest, AFinishedCacheOutlivesTheConnection) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();
  link().push(Kind::kDisconnected, "connection reset");
  link().push(Kind::kConnected);
  expect_next_request_works();
  EXPECT_TRUE(pull_a_page(manifest).ok());
}

TEST_F(GroupServiceTest, StopWithoutLeasesEndsAllRanks) {
  group().start();
  group().stop();
  for (const auto& outcome : group().outcomes()) {
    EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
  }
  ASSERT_EQ(link().sent().size(), 1u);
  EXPECT_TRUE(link().sent()[0].has_drain());
}

TEST_F(GroupServiceTest, ADrainFinishesWhatIsQueuedAndWaitsForLeases) {
  link().push(prefill_request("a", 200));
  link().push(prefill_request("b", 200));
  Envelope drain;
  drain.mutable_drain();
  link().push(drain);
  group().start();
  ASSERT_TRUE(link().wait_for(Envelope::kDrain).has_value());
  const auto first = expect_done().manifest();
  const auto second = expect_done().manifest();
  EXPECT_EQ(second.request_id(), "b");
  // Two leases: the group serves until both are over, one released, one expired.
  link().push(release(first));
  EXPECT_FALSE(expect_lease_reply().has_error());
  EXPECT_TRUE(pull_a_page(second).ok());
  link().push(renew(second, kLeaseMs));
  EXPECT_FALSE(expect_lease_reply().has_error());
  group().clock().advance(std::chrono::milliseconds(kLeaseMs));
  for (const auto& outcome : group().outcomes()) {
    EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
  }
}

TEST_F(GroupServiceTest, ADrainIsAnnouncedInTheMiddleOfAPrompt) {
  link().set_on_send([this](const Envelope& envelope) {
    if (envelope.has_layer_done() && envelope.layer_done().layer() == 0) group().stop();
  });
  group().start();
  link().push(prefill_request("a", 200));
  ASSERT_TRUE(link().wait_for(Envelope::kDrain).has_value());
  expect_done();
}

TEST_F(GroupServiceTest, ADrainDoesNotWaitForLeasesForever) {
  options_.drain_timeout = Duration::zero();
  group().start();
  link().push(prefill_request("a", 200));
  expect_done();
  group().stop();
  for (const auto& outcome : group().outcomes()) {
    EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
  }
}

TEST_F(GroupServiceTest, ARefusedGroupEndsWithTheReason) {
  group().start();
  link().push(Kind::kRefused, "protocol version 1, this coordinator speaks 2");
  const auto& outcome = group().outcomes()[0];
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, Errc::kUnsupported);
  EXPECT_THAT(outcome.error().message, HasSubstr("this coordinator speaks 2"));
}

TEST_F(GroupServiceTest, MetricsCountOverAllRanks) {
  group().start();
  link().push(prefill_request("a", 300));
  expect_done();
  // The samples are posted once the request's command is over; a lease change is the next one.
  link().push(renew({}, 1));
  expect_lease_reply();
  double pages_written = 0;
  for (const auto& metric : group().board().read()) {
    if (metric.name() == "millrace_kv_pages_written_total") pages_written = metric.value();
  }
  EXPECT_EQ(pages_written, 5 * 2 * 4);  // pages, layers, kv heads
}

}  // namespace
}  // namespace millrace::worker
