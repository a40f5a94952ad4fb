// SPDX-License-Identifier: Apache-2.0
// What a group does when its coordinator is gone or rejects it, and when it has to end.

#include "worker/group/group_service.h"

#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using ::testing::HasSubstr;
using Kind = ControlEvent::Kind;

class GroupEndTest : public GroupServiceTest {};

TEST_F(GroupEndTest, ADisconnectCancelsWhatRunsAndForgetsWhatWaits) {
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

TEST_F(GroupEndTest, AFinishedCacheOutlivesTheConnection) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();
  link().push(Kind::kDisconnected, "connection reset");
  link().push(Kind::kConnected);
  expect_next_request_works();
  EXPECT_TRUE(pull_a_page(manifest).ok());
}

TEST_F(GroupEndTest, ARefusedGroupEndsWithTheReason) {
  group().start();
  link().push(Kind::kRefused, "protocol version 1, this coordinator speaks 2");
  const auto& outcome = group().outcomes()[0];
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, Errc::kUnsupported);
  EXPECT_THAT(outcome.error().message, HasSubstr("this coordinator speaks 2"));
}

TEST_F(GroupEndTest, StopWithoutLeasesEndsAllRanks) {
  group().start();
  group().stop();
  expect_good_end();
  ASSERT_EQ(link().sent().size(), 1u);
  EXPECT_TRUE(link().sent()[0].has_drain());
}

TEST_F(GroupEndTest, ADrainFinishesWhatIsQueuedAndWaitsForLeases) {
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
  // Two leases. The group serves until both are over: one is released, one expires.
  link().push(release(first));
  EXPECT_FALSE(expect_lease_reply().has_error());
  EXPECT_TRUE(pull_a_page(second).ok());
  link().push(renew(second, kLeaseMs));
  EXPECT_FALSE(expect_lease_reply().has_error());
  group().clock().advance(std::chrono::milliseconds(kLeaseMs));
  expect_good_end();
}

TEST_F(GroupEndTest, ADrainIsAnnouncedInTheMiddleOfAPrompt) {
  link().set_on_send([this](const Envelope& envelope) {
    if (envelope.has_layer_done() && envelope.layer_done().layer() == 0) group().stop();
  });
  group().start();
  link().push(prefill_request("a", 200));
  ASSERT_TRUE(link().wait_for(Envelope::kDrain).has_value());
  expect_done();
}

TEST_F(GroupEndTest, ADrainDoesNotWaitForLeasesForever) {
  options_.drain_timeout = Duration::zero();
  group().start();
  link().push(prefill_request("a", 200));
  expect_done();
  group().stop();
  expect_good_end();
}

}  // namespace
}  // namespace millrace::worker
