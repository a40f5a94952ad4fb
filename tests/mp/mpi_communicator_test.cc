// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "tests/mp/mpi_test_main.h"
#include "tests/unit/comm/communicator_contract.h"

namespace millrace::comm {
namespace {

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

// Brings the ranks together after every test: some leave their group broken, each rank at its own
// moment.
class MpiTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { conductor() = test_session().world(); }
  static void TearDownTestSuite() { conductor().reset(); }
  void TearDown() override { ASSERT_TRUE(conductor()->barrier(ample()).ok()); }

 private:
  static std::unique_ptr<Communicator>& conductor() {
    static std::unique_ptr<Communicator> communicator;
    return communicator;
  }
};

class MpiCommunicatorContract : public MpiTest,
                                public testing::WithParamInterface<CommunicatorCase> {};

TEST_P(MpiCommunicatorContract, Holds) {
  GetParam().body(*test_session().world());
}

// Small messages: the way that counts beyond 32 bits take.
TEST_P(MpiCommunicatorContract, HoldsWithCutMessages) {
  GetParam().body(*test_session().world({.max_message_bytes = 40'009}));
}

INSTANTIATE_TEST_SUITE_P(Cases, MpiCommunicatorContract, testing::ValuesIn(communicator_contract()),
                         [](const auto& param) { return param.param.name; });

using MpiCommunicator = MpiTest;

TEST_F(MpiCommunicator, SplitEndsWhenTagsEnd) {
  const auto world = test_session().world();
  int num_splits = 0;
  auto child = world->split(0, 0, ample());
  while (child.ok()) {
    ++num_splits;
    child = world->split(0, 0, ample());
  }
  EXPECT_EQ(child.error().code, Errc::kExhausted);
  EXPECT_EQ(num_splits, 255);
  EXPECT_TRUE(world->barrier(ample()).ok());
}

}  // namespace
}  // namespace millrace::comm
