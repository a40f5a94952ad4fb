// SPDX-License-Identifier: Apache-2.0
// What the coordinator is told, immediately and through the board.
#include "worker/prompt/coordinator_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/unit/worker/control/scripted_link.h"
#include "worker/prompt/layer_progress.h"

namespace millrace::worker {
namespace {

using std::chrono::milliseconds;

protocol::PrefillDone done(const std::string& id) {
  protocol::PrefillDone message;
  message.set_request_id(id);
  message.mutable_manifest()->set_request_id(id);
  message.mutable_manifest()->set_lease_id("lease");
  message.mutable_manifest()->set_lease_ms(1000);
  return message;
}

protocol::LeaseChange renewal(const std::string& id) {
  protocol::LeaseChange change;
  change.mutable_renew()->set_request_id(id);
  change.mutable_renew()->set_lease_id("lease");
  return change;
}

protocol::LeaseChange release(const std::string& id) {
  protocol::LeaseChange change;
  change.mutable_release()->set_request_id(id);
  change.mutable_release()->set_lease_id("lease");
  return change;
}

class CoordinatorReporterTest : public ::testing::Test {
 protected:
  protocol::LeaseReply last_reply() const { return link_.sent().back().lease_reply(); }

  ::millrace::testing::FakeClock clock_;
  test::ScriptedLink link_;
  ControlBoard board_{clock_};
  CoordinatorReporter reporter_{&link_, board_};
};

TEST_F(CoordinatorReporterTest, ARenewalIsAnsweredWithWhatIsLeftAndHeld) {
  reporter_.done(done("a"));
  reporter_.lease_changed(renewal("a"), milliseconds(5000), {});
  EXPECT_EQ(last_reply().request_id(), "a");
  EXPECT_EQ(last_reply().expires_in_ms(), 5000U);
  EXPECT_FALSE(last_reply().has_error());
  EXPECT_EQ(board_.held().at(0).expires_in_ms(), 5000U);
}

TEST_F(CoordinatorReporterTest, ARenewalThatFailedIsHeldNoMore) {
  reporter_.done(done("a"));
  reporter_.lease_changed(renewal("a"), milliseconds(5000), error(Errc::kNotFound, "expired"));
  EXPECT_EQ(last_reply().expires_in_ms(), 0U);
  EXPECT_EQ(last_reply().error().code(), static_cast<int>(Errc::kNotFound));
  EXPECT_EQ(last_reply().error().message(), "expired");
  EXPECT_TRUE(board_.held().empty());
}

TEST_F(CoordinatorReporterTest, AReleaseIsHeldNoMore) {
  reporter_.done(done("a"));
  reporter_.lease_changed(release("a"), {}, {});
  EXPECT_FALSE(last_reply().has_error());
  EXPECT_TRUE(board_.held().empty());
}

TEST_F(CoordinatorReporterTest, OtherRanksSayNothing) {
  CoordinatorReporter silent(nullptr, board_);
  silent.started("a");
  silent.done(done("a"));
  silent.failed("b", error(Errc::kIo, "disk full"));
  silent.lease_changed(release("a"), {}, {});
  silent.draining();
  EXPECT_TRUE(link_.sent().empty());
  EXPECT_TRUE(board_.held().empty());
}

TEST_F(CoordinatorReporterTest, ALayerIsReportedOnceItIsDueAndOnlyOnce) {
  LayerProgress progress(reporter_, "a", /*num_layers=*/3);
  progress.computed(1.0);
  progress.computed(0.5);
  progress.report_until(1);
  EXPECT_EQ(link_.sent().size(), 1U);
  progress.report_until(1);
  EXPECT_EQ(link_.sent().size(), 1U);
  progress.computed(0.25);
  progress.report_until(3);
  const auto sent = link_.sent();
  ASSERT_EQ(sent.size(), 3U);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(sent[layer].layer_done().layer(), layer);
    EXPECT_EQ(sent[layer].layer_done().num_layers(), 3U);
    EXPECT_EQ(sent[layer].layer_done().density(), 1.0 / (1 << layer));
  }
}

}  // namespace
}  // namespace millrace::worker
