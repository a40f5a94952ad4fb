// SPDX-License-Identifier: Apache-2.0
// Prompts that begin with what the group remembers: what is computed, what is not, and that the
// caches equal those of prompts computed whole.

#include <string>

#include "tests/support/damage_files.h"
#include "tests/unit/worker/group/group_prefix_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;

class GroupPrefixOnGridsTest : public GroupPrefixTest,
                               public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupPrefixOnGridsTest() { options_.grid = GetParam(); }
};

TEST_P(GroupPrefixOnGridsTest, TheSamePromptAgainIsComputedFromItsLastRowsOn) {
  group().start();
  const auto first = run(request("a", 700));
  EXPECT_EQ(first.cached_tokens(), 0u);
  const auto second = run(request("b", 700));
  // Rows 636 to 699 are the last 64, and page 9 is where they begin.
  EXPECT_EQ(second.cached_tokens(), 576u);
  expect_same(second, first);
  EXPECT_TRUE(kvclient::check_manifest(kvclient::from_protocol(second.manifest())).ok());
}

TEST_P(GroupPrefixOnGridsTest, WhatFollowsASharedPrefixIsComputed) {
  group().start();
  const auto whole = run(request("whole", 500, 1, protocol::CACHE_OFF));
  EXPECT_EQ(run(request("a", 700)).cached_tokens(), 0u);
  const auto behind = run(request("b", 500, 1));
  EXPECT_EQ(behind.cached_tokens(), 320u);
  expect_same(behind, whole);
  // And a third prompt behind what the second added.
  const auto third = run(request("c", 600, 1));
  EXPECT_EQ(third.cached_tokens(), 448u);
  expect_same(third, run(request("whole-2", 600, 1, protocol::CACHE_OFF)));
}

TEST_P(GroupPrefixOnGridsTest, AdaptivePromptsShareWhatTheirLastRowsLeftAlone) {
  plan_ = "adaptive:0.05,0.3,4";
  group().start();
  const auto whole = run(request("whole", 500, 1, protocol::CACHE_OFF));
  run(request("a", 700));
  const auto behind = run(request("b", 500, 1));
  EXPECT_EQ(behind.cached_tokens(), 320u);
  expect_same(behind, whole);
  // Pages 5 and 6 of "b" had rows that ran densely, so a longer prompt computes page 6 itself.
  EXPECT_EQ(run(request("c", 600, 1)).cached_tokens(), 384u);
}

TEST_P(GroupPrefixOnGridsTest, AStreamingPromptHasItsPrefixLayerByLayerToo) {
  std::vector<std::string> wrong;
  protocol::Manifest opened;
  int num_layers = 0;
  link().set_on_send([&](const Envelope& sent) {
    if (sent.has_prefill_opened()) opened = sent.prefill_opened().manifest();
    if (!sent.has_layer_done() || sent.layer_done().request_id() != "b") return;
    ++num_layers;
    kvclient::KvClient client(group().transport(), kvclient::from_protocol(opened), {});
    std::vector<std::byte> pages(static_cast<size_t>(client.num_pages() * client.page_bytes()));
    const auto pulled =
        client.pull(static_cast<int32_t>(sent.layer_done().layer()), 3, 0, client.num_pages(),
                    pages, Deadline::after(std::chrono::seconds(60)));
    if (!pulled.ok()) wrong.push_back(pulled.error().to_string());
  });
  group().start();
  const auto first = run(request("a", 700));
  auto streaming = request("b", 700);
  streaming.mutable_prefill_request()->mutable_options()->set_handover(
      protocol::HANDOVER_STREAMING);
  const auto second = run(streaming);
  EXPECT_EQ(second.cached_tokens(), 576u);
  EXPECT_EQ(num_layers, 2);
  EXPECT_THAT(wrong, ::testing::IsEmpty());
  expect_same(second, first);
}

// 124 of its 700 tokens are new.
TEST_P(GroupPrefixOnGridsTest, BetweenTwoLayersOfAnotherPromptOnlyNewTokensCount) {
  options_.max_preempting_tokens = 150;
  auto foreseen = request("b", 700);
  foreseen.mutable_prefill_request()->set_foreseen_tokens(576);
  after_first_layer_of("long", [this, &foreseen] { link().push(foreseen); });
  group().start();
  const auto first = run(request("a", 700));
  link().push(prefill_request("long", 900));
  const auto second = expect_done();
  EXPECT_EQ(second.request_id(), "b");
  EXPECT_EQ(second.cached_tokens(), 576u);
  EXPECT_EQ(expect_done().request_id(), "long");
  expect_same(second, first);
}

TEST_P(GroupPrefixOnGridsTest, APromptWhosePrefixIsGoneDoesNotRunBetweenTwoLayers) {
  options_.max_preempting_tokens = 150;
  auto foreseen = request("b", 700);
  foreseen.mutable_prefill_request()->set_foreseen_tokens(576);
  after_first_layer_of("long", [this, &foreseen] { link().push(foreseen); });
  group().start();
  run(request("a", 330));  // 256 of them, of one that is 700 long
  link().push(prefill_request("long", 900));
  expect_failed("b", Errc::kExhausted, " of 700 tokens are cached here; between the layers");
  EXPECT_EQ(expect_done().request_id(), "long");
  link().push(request("b", 700));  // alone it may
  EXPECT_EQ(expect_done().request_id(), "b");
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupPrefixOnGridsTest,
                         ::testing::Values(engine::GridShape{1, 1}, engine::GridShape{2, 1},
                                           engine::GridShape{1, 2}, engine::GridShape{2, 2}),
                         [](const auto& grid) {
                           return fmt::format("tp{}cp{}", grid.param.tp, grid.param.cp);
                         });

TEST_F(GroupPrefixTest, OffReadAndWriteAreWhatTheySay) {
  group().start();
  run(request("a", 300, 0, protocol::CACHE_OFF));
  EXPECT_EQ(run(request("b", 300, 0, protocol::CACHE_READ)).cached_tokens(), 0u);
  EXPECT_EQ(run(request("c", 300, 0, protocol::CACHE_WRITE)).cached_tokens(), 0u);
  EXPECT_EQ(run(request("d", 300, 0, protocol::CACHE_WRITE)).cached_tokens(), 0u);
  EXPECT_EQ(run(request("e", 300, 0, protocol::CACHE_OFF)).cached_tokens(), 0u);
  EXPECT_EQ(run(request("f", 300, 0, protocol::CACHE_READ)).cached_tokens(), 192u);
}

TEST_F(GroupPrefixTest, AnotherTenantSaltPlanOrTokenNeverHits) {
  group().start();
  const auto of = [&](const std::string& id, const std::string& owner, const std::string& salt) {
    auto envelope = request(id, 300);
    envelope.mutable_prefill_request()->set_owner(owner);
    envelope.mutable_prefill_request()->mutable_options()->set_cache_salt(salt);
    return envelope;
  };
  run(of("a", "alice", "x"));
  EXPECT_EQ(run(of("b", "bob", "x")).cached_tokens(), 0u);
  EXPECT_EQ(run(of("c", "alice", "")).cached_tokens(), 0u);
  EXPECT_EQ(run(of("d", "alic", "ex")).cached_tokens(), 0u);
  EXPECT_EQ(run(of("e", "", "5:alicex")).cached_tokens(), 0u);
  EXPECT_EQ(run(of("f", "alice", "x")).cached_tokens(), 192u);
  auto sparse = of("g", "alice", "x");
  sparse.mutable_prefill_request()->mutable_options()->set_head_plan("a-shape:64,64");
  EXPECT_EQ(run(sparse).cached_tokens(), 0u);
  auto other = of("h", "alice", "x");
  auto& tokens = *other.mutable_prefill_request()->mutable_prompt_token_ids();
  tokens[4 * 70] ^= 1;  // of page 1
  EXPECT_EQ(run(other).cached_tokens(), 64u);
}

TEST_F(GroupPrefixTest, ImpurePlansShareOnlyWhereTheRequestSaysSo) {
  plan_ = "elastic:64,0.2";  // a window that grows with the prompt
  group().start();
  run(request("a", 700));
  EXPECT_EQ(run(request("b", 700)).cached_tokens(), 0u);
  auto impure = request("c", 700);
  impure.mutable_prefill_request()->mutable_options()->set_cache_impure(true);
  EXPECT_EQ(run(impure).cached_tokens(), 0u);
  impure.mutable_prefill_request()->set_request_id("d");
  EXPECT_EQ(run(impure).cached_tokens(), 576u);
}

TEST_F(GroupPrefixTest, CachedPagesGiveWayToPromptsAndPromptsToNothing) {
  options_.host_pages = 128;  // with the device's 64, six pages a rank in 32 rows
  options_.device_pages = 64;
  options_.grid = {1, 1};
  group().start();
  const auto a = run(request("a", 700));  // 88 of 192 pages
  release_and_wait(a);
  for (int variant = 1; variant < 6; ++variant) {
    const auto done = run(request("v" + std::to_string(variant), 900, variant));  // 120
    EXPECT_EQ(done.request_id(), "v" + std::to_string(variant));
    release_and_wait(done);
  }
  link().push(request("held", 900, 7));
  const auto held = expect_done();
  link().push(request("too much", 900, 8));
  expect_failed("too much", Errc::kExhausted, "needs");
  EXPECT_TRUE(pull_a_page(held.manifest()).ok());
}

TEST_F(GroupPrefixTest, APromptThatIsCancelledLeavesItsPrefixAndNothingElse) {
  options_.grid = {2, 2};
  after_first_layer_of("b", [&] { link().push(cancel("b")); });
  group().start();
  const auto first = run(request("a", 700));
  release_and_wait(first);
  link().push(request("b", 900, 1));
  expect_failed("b", Errc::kCancelled, "cancelled");
  const auto again = run(request("c", 700));
  EXPECT_EQ(again.cached_tokens(), 576u);
  expect_same(again, run(request("whole", 700, 0, protocol::CACHE_OFF)));
}

// The disk fails after the pages have been checked: between the first layer and the second.
TEST_F(GroupPrefixTest, APrefixThatIsDamagedAfterItsCheckIsComputed) {
  const test::TempDirectory disk;
  options_.grid = {1, 1};
  options_.device_pages = 16;
  options_.host_pages = 16;
  options_.disk_pages = 512;
  options_.disk_directory = disk.path();
  after_first_layer_of("b", [&] { test::damage_open_files(disk.path()); });
  group().start();
  EXPECT_EQ(run(request("a", 700)).cached_tokens(), 0u);
  const auto b = run(request("b", 700));
  EXPECT_LT(b.cached_tokens(), 576u);
  expect_same(b, run(request("whole", 700, 0, protocol::CACHE_OFF)));
}

// The first prompt teaches what computing takes, and the second what reading takes.
TEST_F(GroupPrefixTest, APrefixOnADiskThatIsSlowerThanComputingIsComputed) {
  const test::TempDirectory disk;
  options_.grid = {1, 1};
  options_.device_pages = 16;
  options_.host_pages = 16;
  options_.disk_pages = 512;
  options_.disk_directory = disk.path();
  group().start();
  release_and_wait(run(request("a", 700)));
  group().clock_of(0).advance_per_look(std::chrono::milliseconds(100));
  const auto read = run(request("b", 700));
  group().clock_of(0).advance_per_look(Duration::zero());
  EXPECT_EQ(read.cached_tokens(), 576u);
  const auto computed = run(request("c", 700));
  EXPECT_LT(computed.cached_tokens(), 576u);
  expect_same(computed, run(request("whole", 700, 0, protocol::CACHE_OFF)));
}

}  // namespace
}  // namespace millrace::worker
