// SPDX-License-Identifier: Apache-2.0
// Requests go to the group that has cached the beginning of their prompt.
#include <gmock/gmock.h>

#include "common/content/prefix_keys.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PrefixRoutingTest : public SchedulerTest {
 protected:
  void join_both() {
    for (size_t i = 0; i < links_.size(); ++i) {
      auto description = group(id_of(i), fmt::format("group-{}", i), 100'000);
      ASSERT_TRUE(scheduler_->add_group(description, links_[i]).ok());
    }
  }
  static std::string id_of(size_t i) { return fmt::format("g{}", i); }

  void ask(const std::string& id, int64_t num_tokens, const std::string& owner = "alice") {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids.assign(static_cast<size_t>(num_tokens), 1);
    body.options.set_cache(protocol::CACHE_BOTH);
    body.prefix_keys = prefix_keys(body.prompt_token_ids);
    Caller caller = Caller::anybody();
    caller.name = owner;
    const auto refusal = scheduler_->submit(std::move(body), caller);
    ASSERT_FALSE(refusal) << refusal->error.message;
  }
  // As a group sends it before it reports that alice's request of this length is done.
  protocol::Envelope caches(uint64_t sequence, int64_t num_tokens) {
    protocol::Envelope envelope;
    auto& said = *envelope.mutable_cached_prefixes();
    said.set_sequence(sequence);
    said.add_origins()->set_num_tokens(static_cast<uint64_t>(num_tokens));
    const std::vector<int32_t> tokens(static_cast<size_t>(num_tokens), 1);
    for (const uint64_t key : prefix_keys(tokens)) {
      said.add_added(stored_prefix_key(key, 0, tenant_key("alice", "")));
    }
    return envelope;
  }
  void finish(const std::string& id, const std::string& group_id, uint64_t cached_tokens = 0) {
    protocol::Envelope envelope;
    auto& message = *envelope.mutable_prefill_done();
    message.set_request_id(id);
    message.set_cached_tokens(cached_tokens);
    message.mutable_manifest()->set_lease_id("lease-" + id);
    message.mutable_manifest()->set_lease_ms(1000);
    receive(envelope, group_id);
  }
  const std::string& group_of(const std::string& id) { return scheduler_->find(id)->group_id; }

  std::array<RecordingLink, 2> links_;
};

TEST_F(PrefixRoutingTest, TheNextTurnGoesWhereTheFirstWas) {
  join_both();
  ask("other", 5000, "bob");
  EXPECT_EQ(group_of("other"), "g0");
  ask("first", 5000);
  EXPECT_EQ(group_of("first"), "g1");
  receive(caches(1, 5000), "g1");
  finish("first", "g1");
  finish("other", "g0");
  ask("second", 6000);
  EXPECT_EQ(group_of("second"), "g1");
  finish("second", "g1", 4608);
  ask("bobs", 6000, "bob");
  EXPECT_EQ(group_of("bobs"), "g0");
  const std::string text = metrics_.text();
  EXPECT_THAT(text, ::testing::HasSubstr("millrace_prefix_foreseen_tokens_total 4608"));
  EXPECT_THAT(text, ::testing::HasSubstr("millrace_prefix_unfound_tokens_total 0"));
}

TEST_F(PrefixRoutingTest, WhatWasForeseenAndNotFoundIsCounted) {
  join_both();
  receive(caches(1, 5000), "g1");
  ask("a", 6000);
  finish("a", "g1", 4000);
  EXPECT_THAT(metrics_.text(), ::testing::HasSubstr("millrace_prefix_unfound_tokens_total 608"));
}

TEST_F(PrefixRoutingTest, ItGoesElsewhereWhereThatGroupIsBusyForLong) {
  join_both();
  receive(caches(1, 5000), "g0");
  ask("long", 100'000);  // begins with the same
  EXPECT_EQ(group_of("long"), "g0");
  ask("second", 6000);
  EXPECT_EQ(group_of("second"), "g1");
}

TEST_F(PrefixRoutingTest, ItWaitsForAGroupThatWillSoonBeFree) {
  join_both();
  receive(caches(1, 90'000), "g0");
  ask("short", 600, "bob");
  EXPECT_EQ(group_of("short"), "g0");
  ask("second", 95'000);
  EXPECT_EQ(group_of("second"), "");
  finish("short", "g0");
  EXPECT_EQ(group_of("second"), "g0");
  finish("second", "g0", 89'000);
  EXPECT_THAT(metrics_.text(), ::testing::HasSubstr("millrace_prefix_waits_total 1"));
}

// Ticks look at it again; in the end the idle group gets it.
TEST_F(PrefixRoutingTest, ItWaitsForAGroupThatHangsNoLongerThanItSaves) {
  join_both();
  receive(caches(1, 90'000), "g0");
  ask("hangs", 600, "bob");
  ask("second", 95'000);
  EXPECT_EQ(group_of("second"), "");
  pass(seconds(5), {"g0", "g1"});
  EXPECT_EQ(group_of("second"), "g1");
}

TEST_F(PrefixRoutingTest, AGroupThatRegistersAnewHasNothing) {
  join_both();
  receive(caches(1, 5000), "g1");
  RecordingLink again;
  ASSERT_TRUE(scheduler_->add_group(group("g1", "group-1", 100'000), again).ok());
  ask("a", 6000);
  EXPECT_EQ(group_of("a"), "g0");
}

TEST_F(PrefixRoutingTest, AGroupIsAskedAgainForWhatWasMissed) {
  join_both();
  receive(caches(1, 5000), "g1");
  receive(caches(3, 6000), "g1");
  EXPECT_THAT(links_[1].log, ElementsAre("resend"));
  auto whole = caches(3, 6000);
  whole.mutable_cached_prefixes()->set_whole(true);
  receive(whole, "g1");
  ask("a", 6000);
  EXPECT_EQ(group_of("a"), "g1");
}

TEST_F(PrefixRoutingTest, OrWhatAHeartbeatKnowsOf) {
  join_both();
  protocol::Envelope heartbeat;
  heartbeat.mutable_heartbeat()->set_cached_prefixes(1);
  receive(heartbeat, "g1");
  EXPECT_THAT(links_[1].log, IsEmpty());
  receive(heartbeat, "g1");
  EXPECT_THAT(links_[1].log, ElementsAre("resend"));
}

TEST_F(PrefixRoutingTest, WhereItIsOffPrefixesDoNotCount) {
  SchedulerSettings settings;
  settings.routes_by_prefix = false;
  make(settings);
  join_both();
  receive(caches(1, 5000), "g1");
  ask("a", 6000);
  EXPECT_EQ(group_of("a"), "g0");
}

}  // namespace
}  // namespace millrace::coordinator
