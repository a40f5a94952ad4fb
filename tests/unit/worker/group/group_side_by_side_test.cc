// SPDX-License-Identifier: Apache-2.0
// Short prompts side by side, each on one context-parallel rank, on whole groups.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/unit/worker/group/event_recorder.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;

Envelope together(const std::vector<Envelope>& requests) {
  Envelope envelope;
  for (const auto& one : requests) {
    *envelope.mutable_prefills_side_by_side()->add_requests() = one.prefill_request();
  }
  return envelope;
}

// What a decode node gets: the answer, and all pages of 2 layers with 4 kv heads.
struct Cache {
  explicit Cache(const protocol::Manifest& manifest, comm::Transport& transport)
      : first_token(manifest.first_token_id()) {
    for (const auto& one : manifest.top_logprobs()) logits.push_back(one.logit());
    kvclient::KvClient client(transport, kvclient::from_protocol(manifest), {});
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t head = 0; head < 4; ++head) {
        std::vector<std::byte> some(static_cast<size_t>(client.num_pages() * client.page_bytes()));
        const auto pulled = client.pull(layer, head, 0, client.num_pages(), some,
                                        Deadline::after(std::chrono::seconds(60)));
        EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
        pages.insert(pages.end(), some.begin(), some.end());
      }
    }
  }
  bool operator==(const Cache&) const = default;

  int64_t first_token;
  std::vector<double> logits;
  std::vector<std::byte> pages;
};

class GroupSideBySideTest : public GroupServiceTest,
                            public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupSideBySideTest() {
    options_.grid = GetParam();
    options_.side_by_side_tokens = 800;
    options_.max_preempting_tokens = 300;
    options_.device_pages = 64;
    options_.host_pages = 900;
  }

  int num_lanes() const { return GetParam().cp; }
  // "a", "b", ...; their lengths differ.
  std::vector<Envelope> a_prompt_a_lane(const std::string& plan = "adaptive") const {
    std::vector<Envelope> prompts;
    for (int lane = 0; lane < num_lanes(); ++lane) {
      prompts.push_back(prefill_request(std::string(1, static_cast<char>('a' + lane)),
                                        260 - 70 * (lane % 3), plan));
    }
    return prompts;
  }
  std::map<std::string, protocol::Manifest> expect_done_of(size_t count) {
    std::map<std::string, protocol::Manifest> manifests;
    for (size_t i = 0; i < count; ++i) {
      const auto manifest = expect_done().manifest();
      manifests[manifest.request_id()] = manifest;
    }
    return manifests;
  }
  std::vector<std::string> started() {
    std::vector<std::string> ids;
    for (const Envelope& sent : link().sent()) {
      if (sent.has_prefill_started()) ids.push_back(sent.prefill_started().request_id());
    }
    return ids;
  }
  std::optional<double> metric(const std::string& name) {
    const auto heartbeat = group().board().heartbeat();
    for (const auto& sample : heartbeat.metrics()) {
      if (sample.name() == name) return sample.value();
    }
    return std::nullopt;
  }
};

TEST_P(GroupSideBySideTest, EachPromptIsComputedAsOnAGridWithoutContextParallelRanks) {
  auto alone_options = options_;
  alone_options.model_directory = model().path();
  alone_options.grid.cp = 1;
  test::RunningGroup alone(alone_options);
  alone.start();
  group().start();
  const auto prompts = a_prompt_a_lane();
  link().push(together(prompts));
  const auto manifests = expect_done_of(prompts.size());
  for (const auto& prompt : prompts) {
    const auto& id = prompt.prefill_request().request_id();
    ASSERT_TRUE(manifests.contains(id)) << id;
    alone.link().push(prompt);
    const auto reference = alone.link().wait_for(Envelope::kPrefillDone);
    ASSERT_TRUE(reference.has_value());
    const auto& manifest = manifests.at(id);
    EXPECT_EQ(manifest.shards_size(), GetParam().tp);  // pages of one context-parallel rank
    EXPECT_EQ(Cache(manifest, group().transport()),
              Cache(reference->prefill_done().manifest(), alone.transport()))
        << id;
  }
}

TEST_P(GroupSideBySideTest, AllHaveStartedBeforeAnyEndsAndTheGroupGoesOnAsAWhole) {
  group().start();
  link().push(together(a_prompt_a_lane()));
  expect_done();
  EXPECT_EQ(std::ssize(started()), num_lanes());
  for (int lane = 1; lane < num_lanes(); ++lane) expect_done();
  link().push(prefill_request("next", 700));
  const auto next = expect_done();
  EXPECT_EQ(next.request_id(), "next");
  EXPECT_EQ(static_cast<int>(next.manifest().cp()), num_lanes());
}

TEST_P(GroupSideBySideTest, WhatFailsInOneLaneIsThatPromptsOwn) {
  auto prompts = a_prompt_a_lane();
  prompts[0].mutable_prefill_request()->mutable_options()->set_head_plan("diagonal:3");
  group().start();
  link().push(together(prompts));
  expect_failed("a", Errc::kInvalidArgument, "diagonal:3");
  EXPECT_EQ(expect_done().request_id(), "b");
  for (int lane = 2; lane < num_lanes(); ++lane) expect_done();
  expect_next_request_works();
}

TEST_P(GroupSideBySideTest, OneThatIsCancelledBeforeTheyStartIsLeftOut) {
  link().push(together(a_prompt_a_lane()));
  link().push(cancel("a"));
  group().start();
  expect_failed("a", Errc::kCancelled, "before it started");
  for (int lane = 1; lane < num_lanes(); ++lane) expect_done();
  expect_next_request_works();
}

TEST_P(GroupSideBySideTest, OfOneThatIsCancelledMeanwhileNothingStays) {
  link().set_on_send([this](const Envelope& sent) {
    if (sent.has_prefill_started() && sent.prefill_started().request_id() == "b") {
      link().push(cancel("a"));
    }
  });
  group().start();
  link().push(together(a_prompt_a_lane()));
  expect_failed("a", Errc::kCancelled, "while it ran side by side");
  for (int lane = 1; lane < num_lanes(); ++lane) EXPECT_NE(expect_done().request_id(), "a");
  expect_next_request_works();
  EXPECT_EQ(group().board().lease_counts().active, num_lanes());  // with that of the next request
}

TEST_P(GroupSideBySideTest, OfThoseWhoseCoordinatorIsGoneMeanwhileNothingStays) {
  link().set_on_send([this](const Envelope& sent) {
    if (sent.has_prefill_started() && sent.prefill_started().request_id() == "a") {
      link().push(ControlEvent::Kind::kDisconnected, "gone");
    }
  });
  group().start();
  link().push(together(a_prompt_a_lane()));
  for (int lane = 0; lane < num_lanes(); ++lane) {
    ASSERT_TRUE(link().wait_for(Envelope::kPrefillFailed).has_value());
  }
  expect_next_request_works();
  EXPECT_EQ(group().board().lease_counts().active, 1);  // that of the next request
}

TEST_P(GroupSideBySideTest, ADeadlineThatPassesBeforeTheyStartIsThatPromptsOwn) {
  auto prompts = a_prompt_a_lane();
  prompts[1].mutable_prefill_request()->mutable_options()->set_deadline_ms(10);
  options_.max_preempting_tokens = 0;
  link().set_on_send([this, prompts](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().request_id() != "first") return;
    if (sent.layer_done().layer() == 0) link().push(together(prompts));
    if (sent.layer_done().layer() == 1) group().clock().advance(std::chrono::milliseconds(10));
  });
  group().start();
  link().push(prefill_request("first", 100));
  EXPECT_EQ(expect_done().request_id(), "first");
  expect_failed("b", Errc::kDeadlineExceeded, "before it started");
  for (int lane = 1; lane < num_lanes(); ++lane) expect_done();
  expect_next_request_works();
}

TEST_P(GroupSideBySideTest, LeasesOfLanesAreRenewedReleasedAndExpire) {
  group().start();
  link().push(together(a_prompt_a_lane()));
  const auto manifests = expect_done_of(static_cast<size_t>(num_lanes()));
  EXPECT_NE(manifests.at("a").lease_id(), manifests.at("b").lease_id());
  group().clock().advance(std::chrono::milliseconds(kLeaseMs - 1));
  for (const char* id : {"a", "b"}) {
    link().push(renew(manifests.at(id), 5000));
    const auto renewed = expect_lease_reply();
    EXPECT_FALSE(renewed.has_error()) << renewed.error().message();
    EXPECT_EQ(renewed.expires_in_ms(), 5000U);
  }
  link().push(release(manifests.at("b")));
  EXPECT_FALSE(expect_lease_reply().has_error());
  auto strange = manifests.at("a");
  strange.set_lease_id(manifests.at("b").lease_id());
  link().push(renew(strange, 5000));
  EXPECT_EQ(expect_lease_reply().error().code(), static_cast<int>(Errc::kNotFound));
  group().clock().advance(std::chrono::milliseconds(5000));
  link().push(renew(manifests.at("a"), 5000));
  EXPECT_EQ(expect_lease_reply().error().code(), static_cast<int>(Errc::kNotFound));
  expect_next_request_works();
  EXPECT_EQ(metric("millrace_leases_expired_total"), num_lanes() - 1);
}

TEST_P(GroupSideBySideTest, ADrainWaitsForTheLeasesOfAllLanes) {
  group().start();
  link().push(together(a_prompt_a_lane()));
  const auto manifests = expect_done_of(static_cast<size_t>(num_lanes()));
  group().stop();
  ASSERT_TRUE(link().wait_for(Envelope::kDrain).has_value());
  for (const auto& [id, manifest] : manifests) {
    link().push(renew(manifest, kLeaseMs));
    EXPECT_FALSE(expect_lease_reply().has_error()) << id;
    link().push(release(manifest));
    EXPECT_FALSE(expect_lease_reply().has_error()) << id;
  }
  expect_good_end();
}

TEST_P(GroupSideBySideTest, TheyRunBetweenTwoLayersOfALongPromptWhichIsAsItWere) {
  const auto prompts = a_prompt_a_lane();
  after_first_layer_of("long", [&] { link().push(together(prompts)); });
  group().start();
  link().push(prefill_request("long", 1500, "adaptive"));
  const auto manifests = expect_done_of(prompts.size());
  EXPECT_FALSE(manifests.contains("long"));
  const auto with = expect_done();
  EXPECT_EQ(with.request_id(), "long");
  link().push(prefill_request("long alone", 1500, "adaptive"));
  const auto alone = expect_done();
  EXPECT_EQ(Cache(with.manifest(), group().transport()),
            Cache(alone.manifest(), group().transport()));
}

TEST_P(GroupSideBySideTest, LaterPromptsOfTheWholeGroupBeginWithTheirPages) {
  std::vector<Envelope> prompts;
  for (int lane = 0; lane < num_lanes(); ++lane) {
    auto prompt = prefill_request(std::string(1, static_cast<char>('a' + lane)), 700 - 10 * lane);
    prompt.mutable_prefill_request()->mutable_options()->set_cache(protocol::CACHE_BOTH);
    prompts.push_back(std::move(prompt));
  }
  group().start();
  link().push(together(prompts));
  expect_done_of(prompts.size());
  auto again = prefill_request("again", 700);
  again.mutable_prefill_request()->mutable_options()->set_cache(protocol::CACHE_BOTH);
  link().push(again);
  EXPECT_EQ(expect_done().cached_tokens(), 576U);
  // Every lane reports 512 tokens.
  const auto told = group().board().cached_prefixes();
  EXPECT_EQ(told.added_size(), 1);
  expect_next_request_works();  // after the metrics
  EXPECT_EQ(metric("millrace_prefix_cache_hit_tokens_total"), 576);
}

// Each lane has a different prompt; the last two share their first 256 tokens.
TEST_P(GroupSideBySideTest, TheirPagesArePublishedWithTheTokensOfEach) {
  const auto recorder = std::make_shared<test::EventRecorder>();
  options_.open_events = recorder->opener();
  std::vector<Envelope> prompts;
  std::vector<std::vector<int32_t>> all_tokens;
  for (int lane = 0; lane < num_lanes(); ++lane) {
    auto prompt = prefill_request(std::string(1, static_cast<char>('a' + lane)), 500, "dense");
    std::vector<int32_t> tokens(500, 7);
    if (lane < num_lanes() - 2) std::fill(tokens.begin(), tokens.begin() + 256, lane);
    std::fill(tokens.begin() + 256, tokens.end(), 20 + lane);
    auto& message = *prompt.mutable_prefill_request();
    message.set_prompt_token_ids(engine::encode_token_ids(tokens));
    message.mutable_options()->set_cache(protocol::CACHE_BOTH);
    all_tokens.push_back(std::move(tokens));
    prompts.push_back(std::move(prompt));
  }
  group().start();
  link().push(together(prompts));
  expect_done_of(prompts.size());
  expect_next_request_works();
  const auto events = recorder->take();
  ASSERT_EQ(std::ssize(events), num_lanes());
  std::set<std::vector<int32_t>> stored;
  std::set<BlockHash> hashes;
  int num_behind = 0;
  for (const auto& event : events) {
    const auto& blocks = std::get<BlocksStored>(event);
    if (blocks.parent) ++num_behind;
    EXPECT_TRUE(!blocks.parent || hashes.contains(*blocks.parent));
    hashes.insert(blocks.hashes.begin(), blocks.hashes.end());
    stored.insert(blocks.token_ids);
  }
  // Seven pages of each prompt, of which the last two share four.
  EXPECT_EQ(num_behind, 1);
  EXPECT_EQ(std::ssize(hashes), 7 * num_lanes() - 4);
  int num_whole = 0;
  for (const auto& tokens : all_tokens) {
    if (stored.contains({tokens.begin(), tokens.begin() + 448})) ++num_whole;
  }
  EXPECT_EQ(num_whole, num_lanes() - 1);
  // A prompt on the whole group finds them, and they are not stored again.
  auto again = prompts.back();
  again.mutable_prefill_request()->set_request_id("again");
  link().push(again);
  EXPECT_EQ(expect_done().cached_tokens(), 384U);
  link().push(prefill_request("after", 130));
  EXPECT_EQ(expect_done().request_id(), "after");
  EXPECT_THAT(recorder->take(), ::testing::IsEmpty());
}

TEST_P(GroupSideBySideTest, AStreamingHandOverIsOpenedBeforeItIsDone) {
  group().start();
  link().push(together({streaming_request("a", 200), prefill_request("b", 200)}));
  ASSERT_TRUE(link().wait_for(Envelope::kPrefillOpened).has_value());
  expect_done();
  expect_done();
  expect_next_request_works();
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupSideBySideTest,
                         ::testing::Values(engine::GridShape{1, 2}, engine::GridShape{2, 2},
                                           engine::GridShape{1, 4}),
                         [](const auto& param) {
                           return fmt::format("tp{}cp{}", param.param.tp, param.param.cp);
                         });

using GroupWithoutLanes = GroupServiceTest;

TEST_F(GroupWithoutLanes, PromptsThatComeTogetherRunOneAfterTheOther) {
  group().start();
  link().push(together({prefill_request("a", 200), prefill_request("b", 200)}));
  EXPECT_EQ(expect_done().request_id(), "a");
  const auto second = expect_done();
  EXPECT_EQ(second.request_id(), "b");
  EXPECT_EQ(second.manifest().cp(), 2U);
}

}  // namespace
}  // namespace millrace::worker
