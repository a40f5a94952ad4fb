// SPDX-License-Identifier: Apache-2.0
// Which prompts may join the queue.
#include "coordinator/schedule/admission.h"

#include <gmock/gmock.h>

#include "common/content/prefix_keys.h"
#include "coordinator/api/api_error.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class AdmissionTest : public SchedulePartsTest {
 protected:
  // Four prompts of this length took this long.
  void learn(const Group& group, int64_t num_tokens, Duration took) {
    for (int i = 0; i < 4; ++i) {
      Request known;
      known.model = group.description.model().name();
      known.num_tokens = num_tokens;
      turns_.started(group, known, clock_.now());
      turns_.stopped(group, known, clock_.now() + took, /*whole=*/true);
    }
  }
  static PrefillBody body(const std::string& id, const std::string& model = "tiny") {
    PrefillBody out;
    out.model = model;
    out.request_id = id;
    out.prompt_token_ids = {1, 2};
    return out;
  }

  SchedulerSettings settings_;
  TurnOrder turns_;
  PrefillPace pace_;
  Admission admission_{settings_, requests_, groups_, turns_, pace_, clock_};
};

TEST_F(AdmissionTest, AnAdmittedPromptWaitsWithTheDefaultsOfTheService) {
  join(link_);
  clock_.advance(std::chrono::seconds(3));
  ASSERT_FALSE(admission_.admit(body("a")));
  const auto request = requests_.table().find("a");
  ASSERT_TRUE(request);
  EXPECT_EQ(requests_.queue().size(), 1);
  EXPECT_EQ(request->prompt, std::string("\1\0\0\0\2\0\0\0", 8));
  EXPECT_EQ(request->deadline_after(), settings_.default_deadline);
  EXPECT_EQ(request->options.lease_ms(), 60'000u);
  EXPECT_EQ(request->queued_at, clock_.now());
  EXPECT_THAT(link_.log, ::testing::IsEmpty());  // dispatching is another's work
}

TEST_F(AdmissionTest, ABudgetInTokensBecomesAShareOfThePrompt) {
  join(link_);
  const auto share_of = [&](const std::string& id, int64_t tokens) {
    PrefillBody asked = body(id);
    asked.kv_budget_tokens = tokens;
    EXPECT_FALSE(admission_.admit(std::move(asked)));
    return requests_.table().find(id)->options.kv_budget();
  };
  EXPECT_EQ(share_of("half", 1), 0.5);
  EXPECT_EQ(share_of("all", 2), 1);
  EXPECT_EQ(share_of("more", 5), 1);
}

TEST_F(AdmissionTest, AnUnknownModelIsToldFromTheModelsThatAreServed) {
  join(link_);
  const auto refused = admission_.admit(body("a", "tinny"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.message, "unknown model 'tinny'; served here: tiny");
  EXPECT_EQ(refused->field, "model");
}

TEST_F(AdmissionTest, OfManyModelsOnlySomeAreNamed) {
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i"}) {
    ASSERT_TRUE(groups_.add(group_description(name, name, 10, name), link_, {}).ok());
  }
  EXPECT_EQ(admission_.admit(body("a", "z"))->error.message,
            "unknown model 'z'; served here: a, b, c, d, e, f, g, h, ...");
}

TEST_F(AdmissionTest, WhatIsForeseenIsNotQueued) {
  const auto forecast = [&](PrefillBody body) -> std::variant<ExpectedEnd, Refusal> {
    auto opened = admission_.open(std::move(body), Caller::anybody());
    if (auto* refusal = std::get_if<Refusal>(&opened)) return std::move(*refusal);
    return admission_.forecast(std::get<std::shared_ptr<Request>>(opened), Caller::anybody());
  };
  EXPECT_TRUE(std::holds_alternative<Refusal>(forecast(body("a"))));
  Group& group = join(link_);
  learn(group, 2, std::chrono::seconds(3));
  const auto end = forecast(body("a"));
  ASSERT_TRUE(std::holds_alternative<ExpectedEnd>(end));
  EXPECT_NEAR(seconds(std::get<ExpectedEnd>(end).prefill), 3, 1e-3);
  EXPECT_EQ(requests_.queue().size(), 0);
  EXPECT_FALSE(requests_.table().find("a"));
  auto outside = body("a");
  outside.prompt_token_ids = {-1};
  EXPECT_TRUE(std::holds_alternative<Refusal>(forecast(outside)));
  admission_.close();
  EXPECT_TRUE(std::holds_alternative<Refusal>(forecast(body("a"))));
}

TEST_F(AdmissionTest, ADeadlineThatCannotBeMetIsRefusedAtOnce) {
  const Group& group = join(link_);
  auto late = body("late");
  late.options.set_deadline_ms(900);
  ASSERT_FALSE(admission_.admit(late));  // nothing is known yet
  learn(group, 2, std::chrono::seconds(2));
  late.request_id = "later";
  const auto refused = admission_.admit(late);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.code, Errc::kDeadlineExceeded);
  EXPECT_EQ(refused->error.message, "deadline of 0.900 s: 2 tokens take 1.000 s or more here");
  EXPECT_EQ(refused->field, "deadline_ms");
  EXPECT_FALSE(requests_.table().find("later"));
  late.options.set_deadline_ms(1100);
  EXPECT_FALSE(admission_.admit(late));
}

// By default, the HTTP interface lets a prompt begin with cached pages.
TEST_F(AdmissionTest, ADeadlineIsRefusedBehindTheMostThatAnyGroupMayHaveCached) {
  Group& group = join(link_);
  group.description.set_max_prompt_tokens(100'000);
  for (int64_t n = 64; n <= 65'536; n *= 2) learn(group, n, std::chrono::milliseconds(n));
  const auto refused_of = [&](const std::string& id, int64_t deadline_ms) {
    auto asked = body(id);
    asked.prompt_token_ids.assign(8192, 1);
    asked.prefix_keys = prefix_keys(asked.prompt_token_ids);
    asked.options.set_cache(protocol::CACHE_BOTH);
    asked.options.set_deadline_ms(static_cast<uint64_t>(deadline_ms));
    const auto refused = admission_.admit(std::move(asked));
    const auto request = requests_.table().find(id);
    if (request) requests_.fail(request, Refusal(Error(Errc::kCancelled, "")));
    return refused ? refused->error.message : "";
  };
  EXPECT_EQ(refused_of("a", 1), "");  // what the group has cached is not known
  protocol::CachedPrefixes said;
  said.set_sequence(1);
  said.add_origins()->set_num_tokens(8192);
  ASSERT_FALSE(group.prefixes.missed(said));
  EXPECT_THAT(
      refused_of("b", 3'800),
      MatchesRegex("deadline of 3.800 s: 8192 tokens, of which 511 are cached at most, take "
                   "3.84. s or more here"));
  EXPECT_EQ(refused_of("c", 3'900), "");
  said.set_sequence(2);
  const auto keys = prefix_keys(std::vector<int32_t>(8192, 1));
  for (size_t i = 0; i < 8; ++i) {
    said.add_added(stored_prefix_key(keys[i], 0, tenant_key("", "")));
  }
  ASSERT_FALSE(group.prefixes.missed(said));
  EXPECT_THAT(refused_of("d", 1'700), HasSubstr("of which 4607 are cached at most, take 1.7"));
  EXPECT_EQ(refused_of("e", 1'900), "");
  settings_.routes_by_prefix = false;  // nobody knows
  EXPECT_EQ(refused_of("f", 1), "");
}

TEST_F(AdmissionTest, AFullQueueSaysWhenToTryAgain) {
  join(link_);
  for (int i = 0; i < 8; ++i) ASSERT_FALSE(admission_.admit(body(std::to_string(i))));
  for (int i = 0; i < 100; ++i) pace_.finished(std::chrono::seconds(40));
  const auto refused = admission_.admit(body("late"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.code, Errc::kExhausted);
  EXPECT_EQ(refused->retry_after_s, 40);
  EXPECT_EQ(refused->field, "");
}

TEST_F(AdmissionTest, IsReadyWhileItIsOpenAndAGroupTakesRequests) {
  EXPECT_FALSE(admission_.ready());
  Group& group = join(link_);
  EXPECT_TRUE(admission_.ready());
  group.draining = true;
  EXPECT_FALSE(admission_.ready());
  EXPECT_EQ(admission_.admit(body("a"))->error.message,
            "all 1 worker groups of model 'tiny' are draining");
  group.draining = false;
  admission_.close();
  EXPECT_FALSE(admission_.ready());
  EXPECT_EQ(admission_.admit(body("a"))->error.message, "the coordinator is shutting down");
}

using SchedulerAdmission = SchedulerTest;

TEST_F(SchedulerAdmission, RefusesWithoutAnyGroupAsUnavailable) {
  const auto refused = submit("a");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.code, Errc::kUnavailable);
  EXPECT_GT(ApiError(*refused).retry_after_s(), 0);
}

TEST_F(SchedulerAdmission, TellsAnUnknownModelFromOneWithoutAGroupJustNow) {
  RecordingLink link;
  join(link);
  EXPECT_EQ(submit("a", 1, 0, "other")->error.code, Errc::kNotFound);
  EXPECT_EQ(submit("a", 1, 0, "other")->field, "model");
  scheduler_->remove_group("g0", link, "gone");
  EXPECT_EQ(submit("a")->error.code, Errc::kUnavailable);
}

TEST_F(SchedulerAdmission, ChecksTokensAndLengthAgainstTheGroups) {
  RecordingLink small;
  RecordingLink large;
  ASSERT_TRUE(scheduler_->add_group(group("g0", "small", 10), small).ok());
  ASSERT_TRUE(scheduler_->add_group(group("g1", "large", 20), large).ok());
  EXPECT_EQ(submit("a", 21)->error.code, Errc::kTooLarge);
  EXPECT_THAT(submit("a", 21)->error.message, HasSubstr("prompt of 21 tokens"));
  ASSERT_FALSE(submit("b", 20));
  EXPECT_THAT(large.log, ElementsAre("prefill b"));
  EXPECT_TRUE(small.log.empty());
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "c";
  body.prompt_token_ids = {0, 99, 100};
  const auto refused = scheduler_->submit(std::move(body));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->field, "prompt_token_ids");
  EXPECT_THAT(refused->error.message, StartsWith("prompt_token_ids[2] is 100"));
}

TEST_F(SchedulerAdmission, RefusesWhenTheQueueIsFullByNumberOrByBytes) {
  SchedulerSettings settings;
  settings.max_queued_requests = 2;
  settings.max_queued_bytes = 100;
  make(settings);
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  EXPECT_EQ(submit("c")->error.code, Errc::kExhausted);
  done("running");
  EXPECT_EQ(submit("d", 26)->error.code, Errc::kExhausted);  // 12 + 104 bytes
  EXPECT_FALSE(submit("e", 22));                             // 12 + 88
}

TEST_F(SchedulerAdmission, RefusesAnIdThatIsInUseButNotOneThatFailed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  EXPECT_EQ(submit("a")->field, "request_id");
  failed("a", Errc::kIo, "disk full");
  EXPECT_FALSE(submit("a"));
  done("a");
  EXPECT_EQ(submit("a")->field, "request_id");  // its lease is active
}

TEST_F(SchedulerAdmission, DrainingRefusesNewAndFinishesOldRequests) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  scheduler_->drain();
  EXPECT_FALSE(scheduler_->ready());
  EXPECT_EQ(submit("b")->error.code, Errc::kUnavailable);
  EXPECT_TRUE(scheduler_->busy());
  done("a");
  EXPECT_FALSE(scheduler_->busy());
}

}  // namespace
}  // namespace millrace::coordinator
