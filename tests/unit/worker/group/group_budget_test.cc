// SPDX-License-Identifier: Apache-2.0
// Prompts of whose cache only some pages are kept: which pages there are, who can read them, and
// what a decode node does with them.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "decode/decode_node.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/unit/worker/group/group_service_case.h"
#include "tests/unit/worker/sinks/masked_decode.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using ::testing::HasSubstr;

constexpr int kTokens = 700;  // 11 pages
constexpr int kPages = 11;
constexpr int32_t kNew = 24;
Deadline patience() {
  return Deadline::after(std::chrono::minutes(5));
}

class GroupBudgetTest : public GroupServiceTest {
 protected:
  GroupBudgetTest() {
    options_.device_pages = 64;
    options_.host_pages = 448;
  }

  static std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens;
    for (int i = 0; i < kTokens; ++i) tokens.push_back((i * i % 89 + i * 7) % 101);
    return tokens;
  }
  static Envelope request(const std::string& id, double budget,
                          protocol::CacheUse cache = protocol::CACHE_OFF) {
    auto envelope = prefill_request(id, kTokens, "dense");
    auto& message = *envelope.mutable_prefill_request();
    message.set_prompt_token_ids(engine::encode_token_ids(prompt()));
    message.mutable_options()->set_cache(cache);
    message.mutable_options()->set_kv_budget(budget);
    return envelope;
  }
  protocol::PrefillDone run(const Envelope& envelope) {
    link().push(envelope);
    return expect_done();
  }
  std::vector<int32_t> decode(const protocol::Manifest& manifest, int tp = 1) {
    const auto report = decode::decode(
        group().transport(), kvclient::from_protocol(manifest),
        {.model_directory = model().path(), .tp = tp, .max_tokens = kNew, .ignore_eos = true});
    EXPECT_TRUE(report.ok()) << report.error().to_string();
    return report.ok() ? report->token_ids : std::vector<int32_t>();
  }
};

class GroupBudgetOnGridsTest : public GroupBudgetTest,
                               public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupBudgetOnGridsTest() { options_.grid = GetParam(); }
};

TEST_P(GroupBudgetOnGridsTest, KeepsThePagesWithMostMassAndDecodesOverThem) {
  group().start();
  const test::MaskedDecode reference(model().path(), prompt(), "dense");
  for (const double budget : {0.75, 0.5, 0.3}) {
    const auto done = run(request(fmt::format("b{}", budget), budget));
    const auto manifest = kvclient::from_protocol(done.manifest());
    const auto checked = kvclient::check_manifest(manifest);
    ASSERT_TRUE(checked.ok()) << checked.error().to_string();
    EXPECT_EQ(manifest.version, 2);
    ASSERT_TRUE(manifest.kept_pages.has_value());
    const auto kept = reference.choose(budget);
    EXPECT_EQ(*manifest.kept_pages, kept);
    EXPECT_EQ(done.dropped().pages(), static_cast<uint64_t>(kept.count_dropped()));
    EXPECT_EQ(done.dropped().bytes(),
              static_cast<uint64_t>(kept.count_dropped() * 2 * 64 * 16 * 4));
    EXPECT_NEAR(done.dropped().mass(), reference.dropped_mass(kept), 1e-5);
    uint64_t stored = 0;
    for (const auto& tier : done.manifest().tiers()) stored += tier.pages();
    EXPECT_EQ(stored, static_cast<uint64_t>(kept.count()));
    EXPECT_EQ(decode(done.manifest()), reference.generate(kept, kNew));
    EXPECT_EQ(decode(done.manifest(), 2), reference.generate(kept, kNew));
    link().push(release(done.manifest()));
    expect_lease_reply();
  }
}

// With eight tensor-parallel ranks, each kv head is on two.
INSTANTIATE_TEST_SUITE_P(Grids, GroupBudgetOnGridsTest,
                         ::testing::Values(engine::GridShape{1, 1}, engine::GridShape{2, 2},
                                           engine::GridShape{1, 3}, engine::GridShape{8, 1}),
                         [](const auto& grid) {
                           return fmt::format("Tp{}Cp{}", grid.param.tp, grid.param.cp);
                         });

TEST_F(GroupBudgetTest, WhatIsKeptIsAsItWasComputedAndTheRestIsNotThere) {
  group().start();
  const test::MaskedDecode reference(model().path(), prompt(), "dense");
  const auto done = run(request("b", 0.5));
  kvclient::KvClient client(group().transport(), kvclient::from_protocol(done.manifest()), {});
  // A client that does not know what is missing is told by the rank.
  auto unaware_manifest = kvclient::from_protocol(done.manifest());
  unaware_manifest.kept_pages.reset();
  unaware_manifest.version = 1;
  kvclient::KvClient unaware(group().transport(), unaware_manifest, {});
  std::vector<std::byte> bytes(static_cast<size_t>(client.page_bytes()));
  for (int64_t page = 0; page < kPages; ++page) {
    const auto pulled = client.pull(1, 2, page, 1, bytes, patience());
    if (!client.manifest().has_page(1, 2, page)) {
      EXPECT_EQ(pulled.error().code, Errc::kNotFound);
      const auto refused = unaware.pull(1, 2, page, 1, bytes, patience());
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, Errc::kNotFound);
      EXPECT_THAT(refused.error().message, HasSubstr("was dropped"));
      continue;
    }
    ASSERT_TRUE(pulled.ok()) << pulled.error().to_string();
    const auto expected = reference.page(1, 2, page);
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(values[i], expected[i], 1e-4);
  }
}

TEST_F(GroupBudgetTest, ABudgetOfOneIsNone) {
  group().start();
  const auto none = run(request("none", 0));
  const auto one = run(request("one", 1));
  for (const auto* done : {&none, &one}) {
    EXPECT_FALSE(done->has_dropped());
    EXPECT_FALSE(done->manifest().has_kept_pages());
    EXPECT_EQ(done->manifest().version(), 1u);
  }
  EXPECT_EQ(decode(none.manifest()), decode(one.manifest()));
  EXPECT_EQ(none.manifest().tiers(0).pages() + none.manifest().tiers(1).pages(),
            one.manifest().tiers(0).pages() + one.manifest().tiers(1).pages());
}

TEST_F(GroupBudgetTest, OfAShortPromptAllPagesStayAndItsCacheIsWhole) {
  group().start();
  auto envelope = prefill_request("short", 190, "dense");
  envelope.mutable_prefill_request()->mutable_options()->set_kv_budget(0.1);
  const auto done = run(envelope);
  EXPECT_TRUE(done.has_dropped());
  EXPECT_EQ(done.dropped().pages(), 0u);
  EXPECT_EQ(done.manifest().version(), 1u);
  EXPECT_FALSE(done.manifest().has_kept_pages());
  EXPECT_EQ(decode(done.manifest()).size(), size_t{kNew});
}

TEST_F(GroupBudgetTest, WhatIsKeptInPartIsNothingToBeginWith) {
  group().start();
  run(request("a", 0.5, protocol::CACHE_BOTH));
  EXPECT_EQ(run(request("b", 0, protocol::CACHE_BOTH)).cached_tokens(), 0u);
}

TEST_F(GroupBudgetTest, BehindACachedPrefixTheCacheStaysWholeForOthers) {
  group().start();
  const test::MaskedDecode reference(model().path(), prompt(), "dense");
  run(request("a", 0, protocol::CACHE_BOTH));
  const auto part = run(request("b", 0.5, protocol::CACHE_READ));
  EXPECT_EQ(part.cached_tokens(), 576u);
  const auto kept = reference.choose(0.5);
  EXPECT_EQ(*kvclient::from_protocol(part.manifest()).kept_pages, kept);
  EXPECT_EQ(decode(part.manifest()), reference.generate(kept, kNew));
  const auto whole = run(request("c", 0, protocol::CACHE_BOTH));
  EXPECT_EQ(whole.cached_tokens(), 576u);
  EXPECT_EQ(decode(whole.manifest()), reference.generate(reference.choose(1), kNew));
}

TEST_F(GroupBudgetTest, ProgressiveAttentionOfTheWholeMassReadsWhatIsThere) {
  options_.grid = {.tp = 2, .cp = 2};
  group().start();
  const test::MaskedDecode reference(model().path(), prompt(), "dense");
  const auto done = run(request("b", 0.5));
  for (const auto start : {decode::DecodeStart::kNeed, decode::DecodeStart::kWhole}) {
    const auto report =
        decode::decode(group().transport(), kvclient::from_protocol(done.manifest()),
                       {.model_directory = model().path(),
                        .max_tokens = kNew,
                        .ignore_eos = true,
                        .attention = decode::AttentionMode::kProgressive,
                        .progressive = {.mass = 1, .proven = true, .start = start}});
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    const auto kept = reference.choose(0.5);
    EXPECT_EQ(report->token_ids, reference.generate(kept, kNew));
    const auto& touched = report->progressive.attention.pages_touched;
    EXPECT_EQ(touched[0] + touched[1], kept.count() * (kNew - 1));
  }
}

}  // namespace
}  // namespace millrace::worker
