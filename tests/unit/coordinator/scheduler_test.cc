// The decisions of the coordinator, with a clock moved by hand and no sockets.
#include "coordinator/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/codec.h"
#include "protocol/errc.h"
#include "tests/support/fake_clock.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Writes down what it is sent: "prefill r1", "cancel r1", "release lease-1", "closed: ...".
class RecordingLink final : public GroupLink {
 public:
  void send(const protocol::Envelope& envelope) override {
    if (envelope.has_prefill_request()) {
      log.push_back("prefill " + envelope.prefill_request().request_id());
      last_request = envelope.prefill_request();
    } else if (envelope.has_cancel()) {
      log.push_back("cancel " + envelope.cancel().request_id());
    } else if (envelope.has_lease_release()) {
      log.push_back("release " + envelope.lease_release().lease_id());
    } else if (envelope.has_lease_renew()) {
      log.push_back("renew " + envelope.lease_renew().lease_id());
    } else if (envelope.has_heartbeat()) {
      ++heartbeats;
    } else if (envelope.has_register_reply()) {
      ++acceptances;
    }
  }
  void close(const std::string& why) override { log.push_back("closed: " + why); }

  std::vector<std::string> log;
  protocol::PrefillRequest last_request;
  int heartbeats = 0;
  int acceptances = 0;
};

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() { make({}); }

  void make(SchedulerSettings settings) {
    scheduler_ = std::make_unique<Scheduler>(
        settings, clock_, probes_, [this](const Request& r) { changes_.push_back(r.id); });
  }

  static protocol::Register group(const std::string& id, const std::string& name,
                                  uint64_t max_prompt_tokens = 1000,
                                  const std::string& model = "tiny") {
    protocol::Register out;
    out.set_protocol_version(protocol::kProtocolVersion);
    out.set_group_id(id);
    out.set_group_name(name);
    out.set_max_prompt_tokens(max_prompt_tokens);
    out.mutable_model()->set_name(model);
    out.mutable_model()->set_vocab_size(100);
    out.mutable_model()->set_num_layers(2);
    return out;
  }
  void join(RecordingLink& link, const std::string& id = "g0",
            const std::string& name = "group-0") {
    const auto added = scheduler_->add_group(group(id, name), link);
    ASSERT_TRUE(added.ok()) << added.error().message;
  }

  std::optional<ApiError> submit(const std::string& id, int64_t num_tokens = 3,
                                 int64_t deadline_ms = 0, const std::string& model = "tiny") {
    PrefillBody body;
    body.model = model;
    body.request_id = id;
    body.prompt_token_ids.assign(static_cast<size_t>(num_tokens), 1);
    body.deadline_ms = deadline_ms;
    return scheduler_->submit(std::move(body));
  }

  void receive(const protocol::Envelope& envelope, const std::string& group_id = "g0") {
    const auto received = scheduler_->receive(group_id, envelope);
    ASSERT_TRUE(received.ok()) << received.error().message;
  }
  void layer_done(const std::string& id) {
    protocol::Envelope envelope;
    envelope.mutable_layer_done()->set_request_id(id);
    receive(envelope);
  }
  void done(const std::string& id, const std::string& group_id = "g0", int lease_ms = 1000) {
    protocol::Envelope envelope;
    auto& message = *envelope.mutable_prefill_done();
    message.set_request_id(id);
    message.mutable_manifest()->set_lease_id("lease-" + id);
    message.mutable_manifest()->set_lease_ms(static_cast<uint64_t>(lease_ms));
    receive(envelope, group_id);
  }
  void failed(const std::string& id, Errc code, const std::string& why) {
    protocol::Envelope envelope;
    envelope.mutable_prefill_failed()->set_request_id(id);
    envelope.mutable_prefill_failed()->mutable_error()->set_code(protocol::errc_to_wire(code));
    envelope.mutable_prefill_failed()->mutable_error()->set_message(why);
    receive(envelope);
  }
  void heartbeat(const std::string& group_id = "g0") {
    protocol::Envelope envelope;
    envelope.mutable_heartbeat()->set_sequence(1);
    receive(envelope, group_id);
  }
  // Time passes as it does for a server: in small steps, with heartbeats from `group_ids`.
  void pass(Duration duration, const std::vector<std::string>& group_ids = {}) {
    for (Duration passed{}; passed < duration; passed += milliseconds(50)) {
      clock_.advance(milliseconds(50));
      for (const auto& id : group_ids) heartbeat(id);
      scheduler_->tick();
    }
  }
  Errc failure(const std::string& id) { return scheduler_->find(id)->failure.value().code; }
  RequestState state(const std::string& id) { return scheduler_->find(id)->state; }

  millrace::testing::FakeClock clock_;
  metrics::Registry registry_;
  Probes probes_{registry_};
  std::vector<std::string> changes_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, OnlyAStreamingRequestIsOpenedAndOnlyOnce) {
  RecordingLink link;
  join(link);
  const auto opened = [&](const std::string& id, const std::string& lease_id) {
    protocol::Envelope envelope;
    envelope.mutable_prefill_opened()->set_request_id(id);
    envelope.mutable_prefill_opened()->mutable_manifest()->set_lease_id(lease_id);
    receive(envelope);
  };
  ASSERT_FALSE(submit("at-end"));
  EXPECT_EQ(link.last_request.handover(), protocol::HANDOVER_AT_END);
  opened("at-end", "l");
  EXPECT_FALSE(scheduler_->find("at-end")->opened.has_value());
  done("at-end");

  PrefillBody body;
  body.model = "tiny";
  body.request_id = "streaming";
  body.prompt_token_ids = {1};
  body.handover = protocol::HANDOVER_STREAMING;
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  EXPECT_EQ(link.last_request.handover(), protocol::HANDOVER_STREAMING);
  opened("another", "l");
  EXPECT_FALSE(scheduler_->find("streaming")->opened.has_value());
  opened("streaming", "first");
  opened("streaming", "second");
  EXPECT_EQ(state("streaming"), RequestState::kRunning);
  EXPECT_EQ(scheduler_->find("streaming")->opened->lease_id(), "first");
}

TEST_F(SchedulerTest, GivesAGroupOneRequestAtATimeInArrivalOrder) {
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) ASSERT_FALSE(submit(id));
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b"));
  failed("b", Errc::kInternal, "x");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b", "prefill c"));
}

TEST_F(SchedulerTest, SendsPromptPlanLeaseAndTheDeadlineThatIsLeft) {
  RecordingLink link;
  join(link);
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "a";
  body.prompt_token_ids = {1, 99};
  body.head_plan = "dense";
  body.deadline_ms = 5000;
  body.lease_ms = 777;
  ASSERT_FALSE(submit("first"));
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  clock_.advance(milliseconds(1500));
  done("first");
  EXPECT_EQ(link.last_request.prompt_token_ids(), std::string("\1\0\0\0\x63\0\0\0", 8));
  EXPECT_EQ(link.last_request.head_plan(), "dense");
  EXPECT_EQ(link.last_request.lease_ms(), 777u);
  EXPECT_EQ(link.last_request.deadline_ms(), 3500u);
}

TEST_F(SchedulerTest, RequestIsQueuedUntilItsFirstLayerAndEndsWithAnActiveLease) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  EXPECT_EQ(state("a"), RequestState::kQueued);
  layer_done("a");
  EXPECT_EQ(state("a"), RequestState::kRunning);
  layer_done("a");
  layer_done("a");  // more than the model has: ignored
  EXPECT_EQ(scheduler_->find("a")->layer_density.size(), 2u);
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kActive);
  EXPECT_THAT(changes_, ElementsAre("a", "a", "a", "a"));
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerTest, RefusesWithoutAnyGroupAsUnavailable) {
  const auto refused = submit("a");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.code, Errc::kUnavailable);
  EXPECT_GT(refused->retry_after_s(), 0);
}

TEST_F(SchedulerTest, TellsAnUnknownModelFromOneWithoutAGroupJustNow) {
  RecordingLink link;
  join(link);
  EXPECT_EQ(submit("a", 1, 0, "other")->error.code, Errc::kNotFound);
  EXPECT_EQ(submit("a", 1, 0, "other")->param, "model");
  scheduler_->remove_group("g0", link, "gone");
  EXPECT_EQ(submit("a")->error.code, Errc::kUnavailable);
}

TEST_F(SchedulerTest, ChecksTokensAndLengthAgainstTheGroups) {
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
  EXPECT_EQ(refused->param, "prompt_token_ids");
  EXPECT_THAT(refused->error.message, StartsWith("prompt_token_ids[2] is 100"));
}

TEST_F(SchedulerTest, RefusesWhenTheQueueIsFullByNumberOrByBytes) {
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

TEST_F(SchedulerTest, RefusesAnIdThatIsInUseButNotOneThatFailed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  EXPECT_EQ(submit("a")->param, "request_id");
  failed("a", Errc::kIo, "disk full");
  EXPECT_FALSE(submit("a"));
  done("a");
  EXPECT_EQ(submit("a")->param, "request_id");  // its lease is active
}

TEST_F(SchedulerTest, DeadlineCoversTheQueueAndSaysWhereItPassed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a", 3, 1000));
  layer_done("a");
  ASSERT_FALSE(submit("b", 3, 500));
  pass(milliseconds(450), {"g0"});
  EXPECT_EQ(state("b"), RequestState::kQueued);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(failure("b"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("b")->failure->message, HasSubstr("waiting for a group"));
  pass(milliseconds(500), {"g0"});
  EXPECT_EQ(failure("a"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("a")->failure->message, HasSubstr("after 1 of 2 layers"));
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SchedulerTest, CancellingAWaitingRequestTakesItOutOfTheQueue) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  ASSERT_TRUE(scheduler_->cancel("b", "DELETE").ok());
  EXPECT_EQ(failure("b"), Errc::kCancelled);
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  EXPECT_EQ(scheduler_->cancel("nobody", "DELETE").error().code, Errc::kNotFound);
}

TEST_F(SchedulerTest, CancelledGroupGetsTheNextRequestOnlyAfterItHasAnswered) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  layer_done("a");
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  ASSERT_TRUE(scheduler_->cancel("a", "again").ok());
  ASSERT_FALSE(submit("b"));
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
  failed("a", Errc::kCancelled, "cancelled");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a", "prefill b"));
}

TEST_F(SchedulerTest, ReleasesTheResultOfARequestThatWasCancelledTooLate) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a", "release lease-a"));
  EXPECT_EQ(failure("a"), Errc::kCancelled);
}

TEST_F(SchedulerTest, AGroupMayEndACancelledRequestAfterAStepOfThreeLayerTimeouts) {
  RecordingLink link;
  auto description = group("g0", "group-0");
  description.set_layer_timeout_ms(7000);
  ASSERT_TRUE(scheduler_->add_group(description, link).ok());
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  pass(seconds(3 * 7 + 59), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
  pass(seconds(1), {"g0"});
  EXPECT_EQ(link.log.back(), "closed: it did not end a cancelled request");
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerTest, AGroupThatSaysNoLayerTimeoutHasTheWorkersDefault) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  pass(std::chrono::minutes(3 * 5), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
  pass(std::chrono::minutes(1), {"g0"});
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerTest, ALayerTimeoutBeyondADayCountsAsADay) {
  Group group;
  group.description.set_layer_timeout_ms(UINT64_MAX);
  EXPECT_EQ(group.longest_step(), std::chrono::hours(3 * 24));
}

TEST_F(SchedulerTest, AGroupThatEndedACancelledRequestMayStayIdle) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  failed("a", Errc::kCancelled, "cancelled");
  ASSERT_FALSE(submit("b"));
  ASSERT_TRUE(scheduler_->cancel("b", "DELETE").ok());
  done("b");
  pass(std::chrono::minutes(17), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerTest, ASilentGroupIsLostAfterThreeHeartbeats) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  pass(milliseconds(750));
  EXPECT_EQ(state("a"), RequestState::kQueued);
  pass(milliseconds(50));
  EXPECT_EQ(failure("a"), Errc::kPeerLost);
  EXPECT_THAT(scheduler_->find("a")->failure->message,
              HasSubstr("group 'group-0' (id g0) is lost: nothing heard"));
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerTest, AHeldUpCoordinatorBlamesNoGroup) {
  RecordingLink link;
  join(link);
  clock_.advance(seconds(5));  // this process did not run; heartbeats lie unread
  scheduler_->tick();
  heartbeat();
  pass(milliseconds(500));
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerTest, LosingAGroupFailsItsRequestLosesItsLeasesAndKeepsTheQueue) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("kept"));
  done("kept", "g0", 60000);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("waiting"));
  scheduler_->remove_group("g0", link, "connection ended");
  EXPECT_EQ(failure("running"), Errc::kPeerLost);
  EXPECT_EQ(scheduler_->find("kept")->lease, LeaseState::kLost);
  EXPECT_EQ(state("waiting"), RequestState::kQueued);

  RecordingLink restarted;
  join(restarted, "g1", "group-0");
  EXPECT_THAT(restarted.log, ElementsAre("prefill waiting"));
  EXPECT_EQ(scheduler_->find("kept")->lease, LeaseState::kLost);
}

TEST_F(SchedulerTest, AGroupThatReconnectsStillHoldsItsLeases) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("short"));
  done("short", "g0", 1000);
  ASSERT_FALSE(submit("long"));
  done("long", "g0", 60000);
  scheduler_->remove_group("g0", link, "connection ended");
  pass(seconds(2));
  RecordingLink again;
  join(again);
  EXPECT_EQ(scheduler_->find("long")->lease, LeaseState::kActive);
  EXPECT_EQ(scheduler_->find("short")->lease, LeaseState::kLost);
}

TEST_F(SchedulerTest, ALateEndOfAnOldConnectionDoesNotTouchTheNewOne) {
  RecordingLink older;
  RecordingLink newer;
  join(older);
  join(newer);
  EXPECT_THAT(older.log, ElementsAre(StartsWith("closed: ")));
  scheduler_->remove_group("g0", older, "connection ended");
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerTest, WaitingRequestsFailWhenNoGroupComesBack) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("waiting"));
  scheduler_->remove_group("g0", link, "connection ended");
  pass(seconds(29));
  EXPECT_EQ(state("waiting"), RequestState::kQueued);
  pass(seconds(2));
  EXPECT_EQ(failure("waiting"), Errc::kUnavailable);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerTest, RefusesGroupsOfAnotherVersionOrWithATakenName) {
  RecordingLink link;
  auto other = group("g0", "group-0");
  other.set_protocol_version(protocol::kProtocolVersion + 1);
  EXPECT_EQ(scheduler_->add_group(other, link).error().code, Errc::kUnsupported);
  join(link);
  RecordingLink second;
  EXPECT_EQ(scheduler_->add_group(group("g1", "group-0"), second).error().code, Errc::kUnavailable);
  EXPECT_EQ(scheduler_->add_group(group("", "x"), second).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(scheduler_->add_group(group("g2", "x", 0), second).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(link.acceptances, 1);
  EXPECT_EQ(second.acceptances, 0);
}

TEST_F(SchedulerTest, ADrainingGroupFinishesAndGetsNothingMore) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  protocol::Envelope drain;
  drain.mutable_drain();
  receive(drain);
  EXPECT_FALSE(scheduler_->ready());
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  EXPECT_EQ(submit("c")->error.code, Errc::kUnavailable);
}

TEST_F(SchedulerTest, LeaseIsRenewedByTheGroupsWord) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 1000);
  EXPECT_EQ(scheduler_->renew_lease("a", "foreign", seconds(9)).error().code, Errc::kNotFound);
  ASSERT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());
  EXPECT_EQ(scheduler_->renew_lease("a", "lease-a", seconds(9)).error().code, Errc::kExhausted);
  protocol::Envelope reply;
  reply.mutable_lease_reply()->set_request_id("a");
  reply.mutable_lease_reply()->set_expires_in_ms(5000);
  receive(reply);
  ASSERT_TRUE(scheduler_->find("a")->lease_answer);
  EXPECT_TRUE(scheduler_->find("a")->lease_answer->ok());
  pass(milliseconds(4900), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kActive);
  pass(milliseconds(100), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kExpired);
  EXPECT_EQ(scheduler_->renew_lease("a", "lease-a", seconds(9)).error().code, Errc::kNotFound);
}

TEST_F(SchedulerTest, ReleaseGoesToTheGroupOnce) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a");
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kReleased);
  EXPECT_EQ(scheduler_->release_lease("a", "lease-a").error().code, Errc::kNotFound);
  EXPECT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_THAT(link.log, ElementsAre("prefill a", "release lease-a"));
}

TEST_F(SchedulerTest, AnOpenRenewalEndsWhenTheGroupIsLost) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 60000);
  ASSERT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());
  scheduler_->remove_group("g0", link, "connection ended");
  ASSERT_TRUE(scheduler_->find("a")->lease_answer);
  EXPECT_EQ(scheduler_->find("a")->lease_answer->error().code, Errc::kNotFound);
}

TEST_F(SchedulerTest, ForgetsEndedRequestsAfterAWhileAndAboveTheLimit) {
  SchedulerSettings settings;
  settings.max_ended_records = 2;
  make(settings);
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    failed(id, Errc::kIo, "disk full");
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_EQ(scheduler_->find("a"), nullptr);
  EXPECT_NE(scheduler_->find("b"), nullptr);
  pass(std::chrono::minutes(5) + seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("c"), nullptr);
}

TEST_F(SchedulerTest, RecordsWithAnActiveLeaseAreNotOfTheNumberThatIsKept) {
  SchedulerSettings settings;
  settings.max_ended_records = 1;
  make(settings);
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    done(id, "g0", 600'000);
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_active_leases 3"));
  EXPECT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(600)).ok());
  EXPECT_TRUE(scheduler_->release_lease("b", "lease-b").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_TRUE(scheduler_->cancel("c", "DELETE").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_NE(scheduler_->find("a"), nullptr);  // active
  EXPECT_EQ(scheduler_->find("b"), nullptr);  // released before c
  EXPECT_NE(scheduler_->find("c"), nullptr);
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b", "prefill c", "renew lease-a",
                                    "release lease-b", "release lease-c"));
}

TEST_F(SchedulerTest, AMessageThatGroupsDoNotSendIsAnError) {
  RecordingLink link;
  join(link);
  protocol::Envelope nonsense;
  nonsense.mutable_cancel()->set_request_id("a");
  EXPECT_FALSE(scheduler_->receive("g0", nonsense).ok());
  EXPECT_FALSE(scheduler_->receive("g0", {}).ok());
}

TEST_F(SchedulerTest, ALeaseBeyondADayIsAnError) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("kept"));
  done("kept", "g0", 60000);
  ASSERT_FALSE(submit("a"));
  protocol::Envelope envelope;
  envelope.mutable_prefill_done()->set_request_id("a");
  for (const uint64_t lease_ms : {uint64_t{24 * 3600 * 1000 + 1}, UINT64_MAX}) {
    envelope.mutable_prefill_done()->mutable_manifest()->set_lease_ms(lease_ms);
    EXPECT_EQ(scheduler_->receive("g0", envelope).error().code, Errc::kInvalidArgument);
  }
  EXPECT_FALSE(scheduler_->find("a")->ended());

  ASSERT_TRUE(scheduler_->renew_lease("kept", "lease-kept", seconds(9)).ok());
  protocol::Envelope reply;
  reply.mutable_lease_reply()->set_request_id("kept");
  reply.mutable_lease_reply()->set_expires_in_ms(UINT64_MAX);
  EXPECT_EQ(scheduler_->receive("g0", reply).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(scheduler_->find("kept")->lease_ends, clock_.now() + seconds(60));
}

TEST_F(SchedulerTest, MessagesAboutOtherRequestsChangeNothing) {
  RecordingLink link;
  RecordingLink liar;
  join(link);
  join(liar, "g1", "group-1");
  ASSERT_FALSE(submit("a"));
  done("a", "g1");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  done("nobody");
  EXPECT_EQ(state("a"), RequestState::kQueued);
}

TEST_F(SchedulerTest, DrainingRefusesNewAndFinishesOldRequests) {
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

TEST_F(SchedulerTest, AbandonEndsEverything) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  scheduler_->abandon("shutting down");
  EXPECT_EQ(failure("a"), Errc::kUnavailable);
  EXPECT_EQ(failure("b"), Errc::kUnavailable);
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerTest, BeatsToEveryGroup) {
  RecordingLink link;
  join(link);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(link.heartbeats, 4);
}

TEST_F(SchedulerTest, CountsOutcomesByReason) {
  RecordingLink link;
  (void)submit("none");
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a");
  ASSERT_FALSE(submit("b"));
  failed("b", Errc::kIo, "disk full");
  const std::string text = registry_.text();
  for (const char* line :
       {"millrace_prefill_requests_total{outcome=\"refused\",reason=\"unavailable\"} 1",
        "millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"} 1",
        "millrace_prefill_requests_total{outcome=\"failed\",reason=\"io\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace millrace::coordinator
