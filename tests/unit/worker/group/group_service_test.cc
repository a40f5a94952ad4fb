// SPDX-License-Identifier: Apache-2.0
// How a group answers requests of any kind, and what remains usable afterwards.

#include "worker/group/group_service.h"

#include <algorithm>
#include <limits>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

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
  const auto checked = kvclient::check_manifest(kvclient::from_protocol(manifest));
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

TEST_F(GroupServiceTest, APromptShorterThanTheGridNamesOnlyRanksThatHoldSomeOfIt) {
  options_.grid = {2, 2};
  group().start();
  link().push(prefill_request("short", 10));
  const auto manifest = expect_done().manifest();
  const auto checked = kvclient::check_manifest(kvclient::from_protocol(manifest));
  EXPECT_TRUE(checked.ok()) << checked.error().to_string();
  EXPECT_EQ(manifest.shards_size(), 2);
}

TEST_F(GroupServiceTest, ACancelledRequestEndsAtTheNextLayerAndLeavesNothing) {
  after_first_layer_of("a", [&] { link().push(cancel("a")); });
  group().start();
  link().push(prefill_request("a", 300));
  expect_failed("a", Errc::kCancelled, "after layer 1 of 2");
  // Its pages are free again: three times as much as fits at once can be run.
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
  after_first_layer_of("a", [this] { group().clock().advance(std::chrono::milliseconds(100)); });
  link().push(prefill_request("a", 200, "", 100));
  link().push(prefill_request("b", 200, "", 100));
  link().push(prefill_request("c", 200, "", 101));
  group().start();
  expect_failed("a", Errc::kDeadlineExceeded, "the deadline passed in layer 1 of 2");
  expect_failed("b", Errc::kDeadlineExceeded, "the deadline passed before it started");
  EXPECT_EQ(expect_done().request_id(), "c");
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
  options_.host_pages = 4096;  // for as many tokens as the model takes
  group().start();
  link().push(prefill_request("empty", 0));
  expect_failed("empty", Errc::kInvalidArgument, "empty");
  auto odd = prefill_request("odd", 10);
  odd.mutable_prefill_request()->mutable_prompt_token_ids()->push_back('x');
  link().push(odd);
  expect_failed("odd", Errc::kInvalidArgument, "41 bytes");
  auto outside = prefill_request("outside", 10);
  const std::vector<int32_t> tokens = {5, 101};
  outside.mutable_prefill_request()->set_prompt_token_ids(engine::encode_token_ids(tokens));
  link().push(outside);
  expect_failed("outside", Errc::kInvalidArgument, "token id 101 at position 1");
  link().push(prefill_request("long", 40'000));
  expect_failed("long", Errc::kTooLarge, "limit 32768");
  expect_next_request_works();
}

TEST_F(GroupServiceTest, APromptOverTheKvCapacityIsRefusedWithTheNumbers) {
  group().start();
  link().push(prefill_request("never", 2000));
  expect_failed("never", Errc::kTooLarge, "prompt of 2000 tokens, limit 896");
  link().push(prefill_request("held", 200));
  expect_done();
  // 890 tokens: 7 pages a rank, of 2 layers and 4 kv heads.
  link().push(prefill_request("not now", 890));
  expect_failed("not now", Errc::kExhausted, "needs 56 pages");
  expect_next_request_works();
}

TEST_F(GroupServiceTest, ASecondRequestOfAHeldIdIsRefusedAndTheFirstStaysReadable) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();
  link().push(prefill_request("a", 200));
  expect_failed("a", Errc::kInvalidArgument, "already exists");
  const auto pulled = pull_a_page(manifest);
  EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
}

TEST_F(GroupServiceTest, WeightsThatAreNoNumbersAreNotTheClientsFault) {
  const test::TempDirectory sick;
  const auto config = test::tiny_model_config();
  auto tensors = test::random_tensors(config, 11);
  for (auto& [name, tensor] : tensors) {
    std::fill(tensor.values.begin(), tensor.values.end(), std::numeric_limits<float>::quiet_NaN());
  }
  test::write_checkpoint(config, tensors, DType::kFloat32, sick.path(), 1);
  options_.model_directory = sick.path();
  group().start();
  link().push(prefill_request("a", 200));
  expect_failed("a", Errc::kInternal, "");
}

TEST_F(GroupServiceTest, ReportsTheRoomThatCachesLeave) {
  group().start();
  const auto room = [&] {
    // A lease change is a command, and the figures are posted after it. The next command waits for
    // that.
    for (int i = 0; i < 2; ++i) {
      link().push(renew({}, 1));
      expect_lease_reply();
    }
    return group().board().heartbeat().room().free_prompt_tokens();
  };
  const uint64_t empty = room();
  link().push(prefill_request("a", 300));
  expect_done();
  const uint64_t left = room();
  EXPECT_LT(left, empty);
  link().push(prefill_request("longer", static_cast<int>(left) + 1));
  expect_failed("longer", Errc::kExhausted, "");
  link().push(prefill_request("fits", static_cast<int>(left)));
  expect_done();
  EXPECT_EQ(room(), 0u);
}

TEST_F(GroupServiceTest, MetricsCountOverAllRanks) {
  group().start();
  link().push(prefill_request("a", 300));
  expect_done();
  // The samples are posted once the request's command is over. A lease change is the next command.
  link().push(renew({}, 1));
  expect_lease_reply();
  double pages_written = 0;
  const auto heartbeat = group().board().heartbeat();
  for (const auto& metric : heartbeat.metrics()) {
    if (metric.name() == "millrace_kv_pages_written_total") pages_written = metric.value();
  }
  EXPECT_EQ(pages_written, 5 * 2 * 4);  // pages, layers, kv heads
}

}  // namespace
}  // namespace millrace::worker
