// SPDX-License-Identifier: Apache-2.0
// Prompts side by side, behind a prefix that all ranks of a group hold together: a lane reads it
// from the pools of the others.
#include <fstream>
#include <map>
#include <sstream>

#include "tests/unit/worker/group/group_prefix_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;

// Changes a byte of every page in the memory that ranks of this process share. Returns how many.
int damage_shared_pools(int64_t page_bytes) {
  std::ifstream maps("/proc/self/maps");
  int num_pages = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") == std::string::npos || line.find(" rw-s ") == std::string::npos) {
      continue;
    }
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    for (uintptr_t at = begin; at + static_cast<uintptr_t>(page_bytes) <= end;
         at += static_cast<uintptr_t>(page_bytes)) {
      *reinterpret_cast<char*>(at) ^= 1;
      ++num_pages;
    }
  }
  return num_pages;
}

class GroupLanePrefixTest : public GroupPrefixTest,
                            public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupLanePrefixTest() {
    options_.grid = GetParam();
    options_.host_pages = 900;
    options_.side_by_side_tokens = 400;
    options_.shares_memory = true;
  }

  int num_lanes() const { return GetParam().cp; }
  // One prompt for each lane, "lane 0", ..., with 500 or more tokens behind the kShared first ones.
  std::vector<Envelope> a_prompt_a_lane(protocol::CacheUse cache = protocol::CACHE_BOTH) const {
    std::vector<Envelope> prompts;
    for (int lane = 0; lane < num_lanes(); ++lane) {
      prompts.push_back(request(fmt::format("lane {}", lane), 500 + 20 * lane, 1 + lane, cache));
    }
    return prompts;
  }
  std::map<std::string, protocol::PrefillDone> run_together(const std::vector<Envelope>& prompts) {
    Envelope envelope;
    for (const auto& one : prompts) {
      *envelope.mutable_prefills_side_by_side()->add_requests() = one.prefill_request();
    }
    link().push(envelope);
    std::map<std::string, protocol::PrefillDone> done;
    for (size_t i = 0; i < prompts.size(); ++i) {
      auto one = expect_done();
      done[one.request_id()] = std::move(one);
    }
    return done;
  }
  // Computed without the cache, on all ranks.
  protocol::PrefillDone whole(const Envelope& prompt) {
    auto envelope = prompt;
    auto& message = *envelope.mutable_prefill_request();
    message.set_request_id("whole " + message.request_id());
    message.mutable_options()->set_cache(protocol::CACHE_OFF);
    message.mutable_options()->set_handover(protocol::HANDOVER_AT_END);
    message.mutable_options()->set_kv_budget(0);
    return run(envelope);
  }
  std::vector<float> scores(const protocol::Manifest& manifest) {
    kvclient::KvClient client(group().transport(), kvclient::from_protocol(manifest), {});
    const auto scores = client.pull_scores(0, 2, 0, 4, Deadline::after(std::chrono::seconds(60)));
    EXPECT_TRUE(scores.ok()) << scores.error().to_string();
    return scores.ok() ? *scores : std::vector<float>();
  }
};

TEST_P(GroupLanePrefixTest, BeginsWithThePagesOfAllRanks) {
  group().start();
  EXPECT_EQ(run(request("a", 700)).cached_tokens(), 0U);
  EXPECT_GE(group().description().max_side_by_side_prompt_tokens(), 700U);
  const auto prompts = a_prompt_a_lane();
  const auto done = run_together(prompts);
  for (const auto& prompt : prompts) {
    const auto& one = done.at(prompt.prefill_request().request_id());
    EXPECT_TRUE(one.in_lane());
    EXPECT_EQ(one.cached_tokens(), 320U);
    EXPECT_TRUE(kvclient::check_manifest(kvclient::from_protocol(one.manifest())).ok());
    expect_same(one, whole(prompt));
  }
  // What a lane leaves is a prefix for all ranks.
  const auto longer = run(request("b", 600, /*variant=*/1));
  EXPECT_EQ(longer.cached_tokens(), 448U);
  EXPECT_FALSE(longer.in_lane());
  expect_same(longer, whole(request("b", 600, 1)));
}

TEST_P(GroupLanePrefixTest, SoDoSparsePrompts) {
  plan_ = "adaptive:0.05,0.3,4";
  group().start();
  run(request("a", 700));
  const auto prompts = a_prompt_a_lane();
  const auto done = run_together(prompts);
  for (const auto& prompt : prompts) {
    const auto& one = done.at(prompt.prefill_request().request_id());
    EXPECT_TRUE(one.in_lane());
    EXPECT_EQ(one.cached_tokens(), 320U);
    expect_same(one, whole(prompt));
  }
}

TEST_P(GroupLanePrefixTest, ItsPagesHaveTheScoresOfThisPrompt) {
  group().start();
  run(request("a", 700));
  const auto prompts = a_prompt_a_lane();
  const auto done = run_together(prompts);
  for (const auto& prompt : prompts) {
    const auto of_lane = scores(done.at(prompt.prefill_request().request_id()).manifest());
    const auto of_whole = scores(whole(prompt).manifest());
    ASSERT_EQ(of_lane.size(), of_whole.size());
    ASSERT_FALSE(of_lane.empty());
    for (size_t i = 0; i < of_lane.size(); ++i) EXPECT_NEAR(of_lane[i], of_whole[i], 1e-4) << i;
  }
}

TEST_P(GroupLanePrefixTest, ALeaseHoldsTheWholePromptOnAllRanks) {
  group().start();
  run(request("a", 700));
  const auto done = run_together(a_prompt_a_lane());
  const auto& first = done.at("lane 0");
  link().push(renew(first.manifest(), 5000));
  EXPECT_EQ(expect_lease_reply().expires_in_ms(), 5000U);
  EXPECT_FALSE(pull(first.manifest()).empty());
  for (const auto& [id, one] : done) {
    link().push(release(one.manifest()));
    EXPECT_FALSE(expect_lease_reply().has_error()) << id;
  }
  link().push(renew(first.manifest(), 5000));
  EXPECT_EQ(expect_lease_reply().error().code(), static_cast<int>(Errc::kNotFound));
}

TEST_P(GroupLanePrefixTest, AStreamingPromptIsOpenedWithItsPrefix) {
  group().start();
  run(request("a", 700));
  auto prompts = a_prompt_a_lane();
  prompts[0].mutable_prefill_request()->mutable_options()->set_handover(
      protocol::HANDOVER_STREAMING);
  const auto done = run_together(prompts);
  EXPECT_EQ(done.at("lane 0").cached_tokens(), 320U);
  expect_same(done.at("lane 0"), whole(prompts[0]));
  int num_opened = 0;
  for (const Envelope& sent : link().sent()) num_opened += sent.has_prefill_opened() ? 1 : 0;
  EXPECT_EQ(num_opened, 1);
}

// Only the lane's own ranks know which pages are dropped.
TEST_P(GroupLanePrefixTest, OneThatKeepsASmallerCacheComputesWhatItsRanksDoNotHold) {
  group().start();
  run(request("a", 700));
  auto prompts = a_prompt_a_lane();
  prompts.back().mutable_prefill_request()->mutable_options()->set_kv_budget(0.5);
  prompts.back().mutable_prefill_request()->set_request_id("smaller");
  const auto done = run_together(prompts);
  const auto& smaller = done.at("smaller");
  EXPECT_GT(smaller.dropped().pages(), 0U);
  EXPECT_EQ(smaller.manifest().first_token_id(), whole(prompts.back()).manifest().first_token_id());
}

TEST_P(GroupLanePrefixTest, OneWithMoreToComputeThanALaneTakesRunsOnAllRanks) {
  group().start();
  const auto prompts = a_prompt_a_lane();  // nothing of them is cached
  const auto done = run_together(prompts);
  for (const auto& [id, one] : done) {
    EXPECT_FALSE(one.in_lane()) << id;
    EXPECT_EQ(one.manifest().cp(), static_cast<uint32_t>(num_lanes()));
  }
  // The first of them has left the pages that they share.
  EXPECT_EQ(done.at("lane 1").cached_tokens(), 320U);
  expect_same(done.at("lane 1"), whole(prompts[1]));
}

TEST_P(GroupLanePrefixTest, OneThatRunsOnAllRanksAfterwardsCanBeCancelled) {
  after_first_layer_of("lane 0", [this] {
    link().push(cancel("lane 0"));
    link().push(cancel("lane 1"));  // is to run after it
  });
  group().start();
  Envelope envelope;
  for (const auto& one : a_prompt_a_lane()) {
    *envelope.mutable_prefills_side_by_side()->add_requests() = one.prefill_request();
  }
  link().push(envelope);
  expect_failed("lane 0", Errc::kCancelled, "was cancelled after layer 1 of 2");
  expect_failed("lane 1", Errc::kCancelled, "was cancelled after layer 1 of 2");
  for (int lane = 2; lane < num_lanes(); ++lane) expect_done();
  expect_next_request_works();
}

TEST_P(GroupLanePrefixTest, DamagedPagesAreComputedAgainOnAllRanks) {
  group().start();
  run(request("a", 700));
  EXPECT_GT(damage_shared_pools(64 * 16 * 2 * 4), 0);
  const auto prompts = a_prompt_a_lane();
  size_t num_layers = 0;
  link().set_on_send([&](const Envelope& sent) {
    if (sent.has_layer_done() && sent.layer_done().request_id().starts_with("lane")) ++num_layers;
  });
  const auto done = run_together(prompts);
  for (const auto& prompt : prompts) {
    const auto& one = done.at(prompt.prefill_request().request_id());
    EXPECT_FALSE(one.in_lane());
    expect_same(one, whole(prompt));
  }
  EXPECT_EQ(done.at("lane 0").cached_tokens(), 0U);
  EXPECT_EQ(num_layers, 2 * prompts.size());  // of the second attempt alone
  expect_next_request_works();
}

TEST_P(GroupLanePrefixTest, OfAStreamingOneWithDamagedPagesNobodyHearsOfTheFirstAttempt) {
  // All pages are checked before it is opened, so damaged pages then end its prefix.
  group().start();
  run(request("a", 700));
  EXPECT_GT(damage_shared_pools(64 * 16 * 2 * 4), 0);
  auto prompts = a_prompt_a_lane();
  prompts[0].mutable_prefill_request()->mutable_options()->set_handover(
      protocol::HANDOVER_STREAMING);
  const auto done = run_together(prompts);
  int num_opened = 0;
  for (const Envelope& sent : link().sent()) num_opened += sent.has_prefill_opened() ? 1 : 0;
  EXPECT_EQ(num_opened, 1);
  expect_same(done.at("lane 0"), whole(prompts[0]));
}

TEST_P(GroupLanePrefixTest, PagesOnDiskAreReadByTheRanksThatHaveThem) {
  const test::TempDirectory disk;
  options_.device_pages = 8;
  options_.host_pages = 8;  // of 24 and more on each rank
  options_.disk_pages = 1800;
  options_.disk_directory = disk.path();
  group().start();
  run(request("a", 700));
  const auto prompts = a_prompt_a_lane();
  const auto done = run_together(prompts);
  int num_on_all_ranks = 0;
  for (const auto& prompt : prompts) {
    const auto& one = done.at(prompt.prefill_request().request_id());
    num_on_all_ranks += one.in_lane() ? 0 : 1;
    EXPECT_EQ(one.cached_tokens(), 320U);
    expect_same(one, whole(prompt));
  }
  EXPECT_GT(num_on_all_ranks, 0);
}

TEST_P(GroupLanePrefixTest, WhereMemoryIsPrivateALaneBeginsWithWhatItsRanksHold) {
  options_.shares_memory = false;
  options_.side_by_side_tokens = 800;
  group().start();
  run(request("a", 700));
  EXPECT_EQ(group().description().max_side_by_side_prompt_tokens(), 0U);
  const auto prompts = a_prompt_a_lane();
  const auto done = run_together(prompts);
  for (const auto& prompt : prompts) {
    const auto& one = done.at(prompt.prefill_request().request_id());
    EXPECT_TRUE(one.in_lane());
    EXPECT_LT(one.cached_tokens(), 320U);
    expect_same(one, whole(prompt));
  }
}

TEST_P(GroupLanePrefixTest, AnotherTenantsPromptBesideItBeginsWithNothing) {
  options_.side_by_side_tokens = 800;
  group().start();
  run(request("a", 700));
  auto prompts = a_prompt_a_lane();
  prompts[1].mutable_prefill_request()->set_owner("another");
  const auto done = run_together(prompts);
  EXPECT_EQ(done.at("lane 0").cached_tokens(), 320U);
  EXPECT_EQ(done.at("lane 1").cached_tokens(), 0U);
  expect_same(done.at("lane 1"), whole(prompts[1]));
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupLanePrefixTest,
                         ::testing::Values(engine::GridShape{1, 2}, engine::GridShape{2, 2},
                                           engine::GridShape{1, 4}),
                         [](const auto& grid) {
                           return fmt::format("tp{}cp{}", grid.param.tp, grid.param.cp);
                         });

}  // namespace
}  // namespace millrace::worker
