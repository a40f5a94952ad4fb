// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/known_prefixes.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "common/content/prefix_keys.h"

namespace millrace::coordinator {
namespace {

constexpr uint64_t kOrigin = 77;
constexpr uint64_t kTenant = 5;

class KnownPrefixesTest : public ::testing::Test {
 protected:
  // Its keys are first, first + 1, ...
  static Request request(int64_t num_tokens, uint64_t first = 100, const std::string& plan = "") {
    Request out;
    out.num_tokens = num_tokens;
    out.tenant = kTenant;
    for (int64_t i = 0; i < num_tokens / 512; ++i) {
      out.prefix_keys.push_back(first + static_cast<uint64_t>(i));
    }
    out.options.set_cache(protocol::CACHE_BOTH);
    out.options.set_head_plan(plan);
    return out;
  }
  static protocol::PlanOrigin origin(const std::string& plan = "", uint64_t num_tokens = 1000,
                                     uint64_t key = kOrigin) {
    protocol::PlanOrigin out;
    out.set_head_plan(plan);
    out.set_num_tokens(num_tokens);
    out.set_origin(key);
    return out;
  }
  static protocol::CachedPrefixes said(uint64_t sequence, const std::vector<uint64_t>& added,
                                       const std::vector<uint64_t>& gone = {}, bool whole = false) {
    protocol::CachedPrefixes out;
    out.set_sequence(sequence);
    out.set_whole(whole);
    for (const uint64_t key : added) out.add_added(stored_prefix_key(key, kOrigin, kTenant));
    for (const uint64_t key : gone) out.add_gone(stored_prefix_key(key, kOrigin, kTenant));
    *out.add_origins() = origin();
    return out;
  }

  KnownPrefixes known_;
};

TEST_F(KnownPrefixesTest, NothingIsKnownBeforeAnythingIsSaid) {
  EXPECT_EQ(known_.tokens_of(request(5000)), 0);
}

TEST_F(KnownPrefixesTest, ABeginningIsKnownAsFarAsItGoes) {
  EXPECT_FALSE(known_.missed(said(1, {100, 101, 102})));
  EXPECT_EQ(known_.tokens_of(request(5000)), 3 * 512);
  EXPECT_EQ(known_.tokens_of(request(1100)), 2 * 512);
  EXPECT_EQ(known_.tokens_of(request(5000, 101)), 2 * 512);
  EXPECT_EQ(known_.tokens_of(request(5000, 200)), 0);
  EXPECT_FALSE(known_.missed(said(2, {103}, {102, 103})));
  EXPECT_EQ(known_.tokens_of(request(5000)), 2 * 512);
}

TEST_F(KnownPrefixesTest, AllIsKnownOnceSomethingWasSaidAndNothingMissed) {
  EXPECT_FALSE(known_.complete());
  EXPECT_FALSE(known_.missed(said(1, {100})));
  EXPECT_TRUE(known_.complete());
  EXPECT_TRUE(known_.missed(said(3, {101})));
  EXPECT_FALSE(known_.complete());
  EXPECT_FALSE(known_.missed(said(3, {100, 101}, {}, /*whole=*/true)));
  EXPECT_TRUE(known_.complete());
  protocol::CachedPrefixes many;
  many.set_sequence(4);
  for (uint64_t key = 0; key < KnownPrefixes::kMaxPrefixKeys; ++key) many.add_added(key);
  EXPECT_FALSE(known_.missed(many));
  EXPECT_FALSE(known_.complete());
}

// What a plan became at another length may be what it becomes at this one.
TEST_F(KnownPrefixesTest, AtMostItIsWhatAnyOriginOfThePlanSays) {
  auto all = said(1, {100, 101});
  *all.add_origins() = origin("", 5000, kOrigin + 1);
  all.add_added(stored_prefix_key(100, kOrigin + 1, kTenant));
  EXPECT_FALSE(known_.missed(all));
  EXPECT_EQ(known_.tokens_of(request(5000)), 512);
  EXPECT_EQ(known_.most_tokens_of(request(5000)), 2 * 512);
  EXPECT_EQ(known_.most_tokens_of(request(5000, 100, "dense")), 0);
  auto writes = request(5000);
  writes.options.set_cache(protocol::CACHE_WRITE);
  EXPECT_EQ(known_.most_tokens_of(writes), 0);
}

TEST_F(KnownPrefixesTest, TheLastTokensAreComputedAnyway) {
  EXPECT_FALSE(known_.missed(said(1, {100, 101})));
  EXPECT_EQ(known_.tokens_of(request(1024)), 1024 - 64);
}

TEST_F(KnownPrefixesTest, OneWhoReadsNoCacheOrIsAnotherTenantHasNone) {
  EXPECT_FALSE(known_.missed(said(1, {100})));
  auto asked = request(5000);
  asked.options.set_cache(protocol::CACHE_WRITE);
  EXPECT_EQ(known_.tokens_of(asked), 0);
  asked = request(5000);
  asked.tenant = kTenant + 1;
  EXPECT_EQ(known_.tokens_of(asked), 0);
}

TEST_F(KnownPrefixesTest, PlansAreToldApart) {
  EXPECT_FALSE(known_.missed(said(1, {100})));
  EXPECT_EQ(known_.tokens_of(request(5000, 100, "adaptive")), 0);
  auto asked = request(5000);
  asked.options.set_min_recall(0.9);
  EXPECT_EQ(known_.tokens_of(asked), 0);
}

TEST_F(KnownPrefixesTest, PagesOfAnImpurePlanAreForThoseWhoSaySo) {
  auto change = said(1, {100});
  change.mutable_origins(0)->set_impure(true);
  EXPECT_FALSE(known_.missed(change));
  auto asked = request(5000);
  EXPECT_EQ(known_.tokens_of(asked), 0);
  asked.options.set_cache_impure(true);
  EXPECT_EQ(known_.tokens_of(asked), 512);
}

// "auto": dense at 4,000 tokens, adaptive from 16,000 on.
TEST_F(KnownPrefixesTest, TheNearestLengthSaysWhatAPlanBecomes) {
  protocol::CachedPrefixes change;
  change.set_sequence(1);
  *change.add_origins() = origin("auto", 4000, 1);
  *change.add_origins() = origin("auto", 16'000, 2);
  *change.add_origins() = origin("auto", 64'000, 2);
  for (const uint64_t key : {100, 101}) change.add_added(stored_prefix_key(key, 1, kTenant));
  change.add_added(stored_prefix_key(100, 2, kTenant));
  EXPECT_FALSE(known_.missed(change));
  EXPECT_EQ(known_.tokens_of(request(2000, 100, "auto")), 2 * 512);
  EXPECT_EQ(known_.tokens_of(request(7000, 100, "auto")), 2 * 512);
  EXPECT_EQ(known_.tokens_of(request(9000, 100, "auto")), 512);
  EXPECT_EQ(known_.tokens_of(request(32'000, 100, "auto")), 512);
  EXPECT_EQ(known_.tokens_of(request(900'000, 100, "auto")), 512);
}

TEST_F(KnownPrefixesTest, AGapIsAskedAboutOnceAndAWholeMessageClosesIt) {
  EXPECT_FALSE(known_.missed(said(1, {100})));
  EXPECT_TRUE(known_.missed(said(3, {102})));
  EXPECT_FALSE(known_.missed(said(4, {103})));
  EXPECT_EQ(known_.tokens_of(request(5000)), 512);
  EXPECT_FALSE(known_.missed(said(4, {100, 101}, {}, /*whole=*/true)));
  EXPECT_EQ(known_.tokens_of(request(5000)), 2 * 512);
  // This message was on its way when the whole one was written.
  EXPECT_FALSE(known_.missed(said(4, {}, {100})));
  EXPECT_EQ(known_.tokens_of(request(5000)), 2 * 512);
  EXPECT_TRUE(known_.missed(said(6, {})));
}

TEST_F(KnownPrefixesTest, AHeartbeatTellsOfALostMessageWithTheNextOne) {
  EXPECT_FALSE(known_.missed(said(1, {100})));
  EXPECT_FALSE(known_.missed(uint64_t{1}));
  EXPECT_FALSE(known_.missed(uint64_t{2}));  // its message may be right behind
  EXPECT_TRUE(known_.missed(uint64_t{2}));
  EXPECT_FALSE(known_.missed(uint64_t{2}));
  EXPECT_FALSE(known_.missed(said(2, {101}, {}, /*whole=*/true)));
  EXPECT_FALSE(known_.missed(uint64_t{2}));
}

TEST_F(KnownPrefixesTest, WhatAGroupSaysTakesBoundedMemory) {
  protocol::CachedPrefixes change;
  change.set_sequence(1);
  for (uint64_t key = 0; key < 70'000; ++key) change.add_added(key);
  for (int i = 0; i < 1000; ++i) *change.add_origins() = origin(std::to_string(i));
  *change.add_origins() = origin(std::string(100'000, 'x'));
  EXPECT_FALSE(known_.missed(change));
  EXPECT_EQ(known_.num_keys(), 65'536);
}

// Compares with sets of whole beginnings, searched one after another, over random changes like a
// cache's: the deepest beginning of a prompt goes first.
TEST_F(KnownPrefixesTest, AgreesWithALinearSearchOverRandomChanges) {
  std::mt19937 random(1);
  std::set<uint64_t> held;
  const auto reference = [&held](const Request& asked) {
    int64_t tokens = 0;
    for (const uint64_t key : asked.prefix_keys) {
      if (!held.contains(key)) break;
      tokens += 512;
    }
    return std::min(tokens, asked.num_tokens - 64);
  };
  // Eight documents of 40 beginnings.
  const auto first_of = [](uint64_t document) { return 1000 * (document + 1); };
  std::vector<uint64_t> depth(8, 0);
  for (uint64_t sequence = 1; sequence < 2000; ++sequence) {
    const uint64_t document = random() % depth.size();
    const uint64_t now = random() % 41;
    std::vector<uint64_t> added;
    std::vector<uint64_t> gone;
    for (uint64_t i = depth[document]; i < now; ++i) added.push_back(first_of(document) + i);
    for (uint64_t i = now; i < depth[document]; ++i) gone.push_back(first_of(document) + i);
    depth[document] = now;
    for (const uint64_t key : added) held.insert(key);
    for (const uint64_t key : gone) held.erase(key);
    // One in ten is lost, and asked for again.
    if (random() % 10 == 0) {
      const std::vector<uint64_t> all(held.begin(), held.end());
      EXPECT_FALSE(known_.missed(said(sequence, all, {}, /*whole=*/true)));
    } else {
      EXPECT_FALSE(known_.missed(said(sequence, added, gone)));
    }
    const auto asked = request(1 + random() % 25'000, first_of(random() % depth.size()));
    if (asked.num_tokens <= 64) continue;
    EXPECT_EQ(known_.tokens_of(asked), reference(asked));
  }
}

}  // namespace
}  // namespace millrace::coordinator
