// SPDX-License-Identifier: Apache-2.0
// Nothing that keeps a rank from rank 0, or rank 0 from its ranks, blocks either of them beyond the
// deadline. Each of these cases waited for minutes or forever when the calls of the sockets API did
// the waiting.

#include "worker/sync/watch_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <vector>

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;
const std::string kEpoch = "epoch";

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}
Deadline soon() {
  return Deadline::after(std::chrono::milliseconds(50));
}

class WatchSocketTest : public ::testing::Test {
 protected:
  WatchSocket connect_rank(int rank, Deadline deadline) {
    auto connected = connect_to_rank_0(endpoint_, kEpoch, rank, deadline);
    EXPECT_TRUE(connected.ok()) << connected.error().to_string();
    return connected.ok() ? std::move(*connected) : WatchSocket();
  }
  // Connects from where ranks do, and sends nothing.
  WatchSocket connect_stranger() {
    const sockaddr_storage address = listener_address();
    WatchSocket stranger(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(stranger.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    return stranger;
  }
  sockaddr_storage listener_address() {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    return address;
  }

  WatchEndpoint endpoint_;
  WatchSocket listener_ = *listen_for_ranks("localhost", endpoint_);
  RankArrivals arrivals_{listener_, kRanks, kEpoch};
};

TEST_F(WatchSocketTest, ARankIsAcceptedByItsGreetingAndAStrangerIsNot) {
  connect_stranger();
  const auto other_group = connect_to_rank_0(endpoint_, "other", 1, ample());
  const auto beyond = connect_rank(kRanks, ample());
  const auto rank = connect_rank(1, ample());
  const auto greeted = arrivals_.next(ample());
  ASSERT_TRUE(greeted.ok()) << greeted.error().to_string();
  EXPECT_EQ(greeted->rank, 1);
}

TEST_F(WatchSocketTest, RanksAreToldAnAddressThatTheyNeedNotResolve) {
  EXPECT_STREQ(endpoint_.host.data(),
               listener_address().ss_family == AF_INET ? "127.0.0.1" : "::1");
}

// A host that drops what it is sent. A listener whose queue is full does that to those who connect.
TEST_F(WatchSocketTest, AHostThatDoesNotAnswerIsGivenUpAtTheDeadline) {
  ASSERT_EQ(listen(listener_.fd(), 0), 0);
  std::vector<WatchSocket> queued;
  Result<WatchSocket> connected = WatchSocket();
  while ((connected = connect_to_rank_0(endpoint_, kEpoch, 1, soon())).ok()) {
    queued.push_back(std::move(*connected));
    ASSERT_LT(queued.size(), 100u);
  }
  EXPECT_EQ(connected.error().code, Errc::kDeadlineExceeded);
  EXPECT_THAT(connected.error().message, HasSubstr("no answer"));
}

TEST_F(WatchSocketTest, StrangersThatSayNothingDoNotKeepRankZeroPastTheDeadline) {
  std::vector<WatchSocket> strangers;
  for (int i = 0; i < 10; ++i) strangers.push_back(connect_stranger());
  const auto greeted = arrivals_.next(soon());
  ASSERT_FALSE(greeted.ok());
  EXPECT_EQ(greeted.error().code, Errc::kDeadlineExceeded);
}

TEST_F(WatchSocketTest, ACrowdThatSaysNothingKeepsNoRankOut) {
  std::vector<WatchSocket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_stranger());
  const auto rank = connect_rank(1, ample());
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_stranger());
  const auto greeted = arrivals_.next(ample());
  ASSERT_TRUE(greeted.ok()) << greeted.error().to_string();
  EXPECT_EQ(greeted->rank, 1);
}

// In that case the waiting connection cannot be accepted, and shows up at every poll.
TEST_F(WatchSocketTest, WithoutAFreeDescriptorRankZeroWaitsUntilTheDeadlineAndNoLonger) {
  const auto rank = connect_rank(1, ample());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const WatchSocket next_free(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const rlimit none_free{.rlim_cur = static_cast<rlim_t>(next_free.fd()),
                         .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_free), 0);
  const auto refused = arrivals_.next(soon());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kDeadlineExceeded);
  EXPECT_TRUE(arrivals_.next(ample()).ok());
}

}  // namespace
}  // namespace millrace::worker
