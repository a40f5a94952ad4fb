// SPDX-License-Identifier: Apache-2.0
// A rank's start: what it registers with, and that a failure on one rank fails all.
#include "worker/group/group_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// A transport that cannot listen at one of the ports.
class DeafTransport final : public comm::Transport {
 public:
  static constexpr int kDeafPort = 4711;
  using Transport::connect;
  using Transport::listen;

  Result<std::unique_ptr<comm::TransportServer>> listen(
      const std::string& host, int port, comm::TransportServer::Handler handler,
      comm::TransportServer::Admits admits) override {
    // Rank 1's port is the next one.
    if (port == kDeafPort + 1) return error(Errc::kIo, "port {} is in use", port);
    return transport_.listen(host, port, std::move(handler), std::move(admits));
  }
  Result<std::unique_ptr<comm::TransportConnection>> connect(const std::string& address,
                                                             const std::string& capability,
                                                             Deadline deadline) override {
    return transport_.connect(address, capability, deadline);
  }

 private:
  comm::LocalTransport transport_;
};

class GroupRankTest : public GroupServiceTest {
 protected:
  // Starts two ranks that do not serve. Returns "ok" or the error of each.
  static std::vector<std::string> starts(
      const std::function<void(GroupRankOptions&, int)>& change) {
    std::vector<std::string> outcomes(2);
    DeafTransport transport;
    test::ScriptedLink link;
    std::latch started(2);
    test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
      const int rank = world->rank();
      GroupRankOptions options;
      options.rank = test::rank_options(model().path(), {2, 1});
      options.group.epoch = "epoch";
      options.group.head_plan = "dense";
      options.pools.host_bytes = 1 << 20;
      change(options, rank);
      const auto made = GroupRank::start(
          std::move(world), options,
          {.transport = transport, .connect = [&](protocol::Register, ControlBoard&) {
             return std::make_unique<test::SharedLink>(link);
           }});
      outcomes[static_cast<size_t>(rank)] = made.ok() ? "ok" : made.error().message;
      started.arrive_and_wait();
    });
    return outcomes;
  }
};

TEST_F(GroupRankTest, RegistersWithWhatTheGroupIs) {
  options_.grid = {2, 2};
  group().start();
  group().stop();
  expect_good_end();
  const auto& description = group().description();
  EXPECT_EQ(description.group_id(), "epoch-1");
  EXPECT_EQ(description.group_name(), "group-0");
  EXPECT_EQ(description.tp(), 2U);
  EXPECT_EQ(description.cp(), 2U);
  EXPECT_EQ(description.max_prompt_tokens(), 1920U);  // what the stores hold
  EXPECT_EQ(description.layer_timeout_ms(), 60'000U);
  EXPECT_EQ(description.model().vocab_size(), 101U);
  EXPECT_EQ(description.model().num_kv_heads(), 4U);
  EXPECT_EQ(description.model().dtype(), "float32");
}

TEST_F(GroupRankTest, RegistersTheModelByTheNameThatItIsGiven) {
  options_.served_model_name = "org/name";
  group().start();
  group().stop();
  expect_good_end();
  EXPECT_EQ(group().description().model().name(), "org/name");
}

TEST_F(GroupRankTest, StartsOnAllRanks) {
  EXPECT_THAT(starts([](GroupRankOptions&, int) {}), Each("ok"));
}

TEST_F(GroupRankTest, APlanThatIsNoneIsAnErrorBeforeTheFirstRequest) {
  EXPECT_THAT(
      starts([](GroupRankOptions& options, int) { options.group.head_plan = "diagonal:3"; }),
      Each(HasSubstr("diagonal:3")));
}

TEST_F(GroupRankTest, PoolsWithoutRoomForAnyPromptAreRefusedWithTheOptions) {
  EXPECT_THAT(starts([](GroupRankOptions& options, int) { options.pools.host_bytes = 1 << 14; }),
              Each(HasSubstr("see --device-pool, --host-pool, --disk-pool")));
}

TEST_F(GroupRankTest, ADiskThatOneRankCannotUseIsAnErrorOnAll) {
  EXPECT_THAT(starts([](GroupRankOptions& options, int rank) {
                options.pools.disk_bytes = rank;
                if (rank == 1) options.pools.disk_directory = "/dev/null/none";
              }),
              Each(HasSubstr("rank 1: /dev/null/none/rank-1")));
}

TEST_F(GroupRankTest, AServerThatOneRankCannotStartIsAnErrorOnAll) {
  EXPECT_THAT(starts([](GroupRankOptions& options, int rank) {
                if (rank == 1) options.kv_port = DeafTransport::kDeafPort;
              }),
              Each("rank 1: port 4712 is in use"));
}

TEST_F(GroupRankTest, RanksHaveTheIdThatRankZeroDraws) {
  std::vector<std::string> epochs(2);
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    epochs[static_cast<size_t>(world->rank())] = draw_epoch(*world).value();
  });
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_FALSE(epochs[0].empty());
}

}  // namespace
}  // namespace millrace::worker
