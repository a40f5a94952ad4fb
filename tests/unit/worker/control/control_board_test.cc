#include "worker/control/control_board.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace millrace::worker {
namespace {

using std::chrono::milliseconds;

protocol::PrefillDone done(const std::string& id, uint64_t lease_ms) {
  protocol::PrefillDone out;
  out.set_request_id(id);
  out.mutable_manifest()->set_lease_id("lease-" + id);
  out.mutable_manifest()->set_lease_ms(lease_ms);
  out.mutable_manifest()->set_first_token_id(7);
  return out;
}

class ControlBoardTest : public ::testing::Test {
 protected:
  // "a 1000": what is held, and for how many milliseconds.
  std::vector<std::string> held() {
    std::vector<std::string> out;
    for (const auto& lease : board_.held()) {
      EXPECT_EQ(lease.done().manifest().first_token_id(), 7);
      out.push_back(lease.done().request_id() + " " + std::to_string(lease.expires_in_ms()));
    }
    return out;
  }
  using Held = std::vector<std::string>;

  ::millrace::testing::FakeClock clock_;
  ControlBoard board_{clock_};
};

TEST_F(ControlBoardTest, HoldsLeasesUntilTheyEnd) {
  board_.hold(done("a", 1000));
  board_.hold(done("b", 2000));
  clock_.advance(milliseconds(400));
  EXPECT_EQ(held(), Held({"a 600", "b 1600"}));
  clock_.advance(milliseconds(600));
  EXPECT_EQ(held(), Held({"b 1000"}));
}

TEST_F(ControlBoardTest, ARenewalCountsFromNowAndAReleaseForgets) {
  board_.hold(done("a", 1000));
  board_.hold(done("b", 1000));
  clock_.advance(milliseconds(500));
  board_.renew("a", "lease-a", milliseconds(5000));
  board_.renew("b", "foreign", milliseconds(5000));
  EXPECT_EQ(held(), Held({"a 5000", "b 500"}));
  board_.end("a", "lease-a");
  board_.end("b", "foreign");
  EXPECT_EQ(held(), Held({"b 500"}));
}

TEST_F(ControlBoardTest, AHeartbeatSaysRoomOnceItIsKnown) {
  EXPECT_FALSE(board_.heartbeat().has_room());
  board_.post({}, 640);
  EXPECT_EQ(board_.heartbeat().room().free_prompt_tokens(), 640u);
}

}  // namespace
}  // namespace millrace::worker
