// SPDX-License-Identifier: Apache-2.0
#include "comm/local/fault_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "comm/local/local_transport.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class FaultTransportTest : public testing::Test {
 protected:
  Result<TransportConnection::Reply> call(TransportConnection& connection) {
    return connection.call(pattern_request(1000, 2), destination_, ample());
  }
  std::unique_ptr<TransportConnection> connect(FaultTransport& transport) {
    if (!server_) {
      auto server = transport.listen("test", 0, [this](std::string_view request) {
        ++num_heard_;
        return answer_with_pattern(request);
      });
      server_ = std::move(server).value();
    }
    return std::move(transport.connect(server_->address(), ample())).value();
  }

  LocalTransport local_;
  std::atomic<int> num_heard_ = 0;
  std::unique_ptr<TransportServer> server_;
  std::vector<std::byte> destination_ = std::vector<std::byte>(1000);
};

TEST_F(FaultTransportTest, FlipsOneByteOfTheChosenPayload) {
  FaultTransport transport(
      local_, {{{.kind = FaultKind::kFlipByte, .first_call = 1, .num_calls = 1, .byte = 1003}}});
  const auto connection = connect(transport);
  const auto expected = pattern_payload(1000);
  ASSERT_TRUE(call(*connection).ok());
  EXPECT_TRUE(destination_ == expected);
  ASSERT_TRUE(call(*connection).ok());
  for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(destination_[i] != expected[i], i == 3) << i;
  ASSERT_TRUE(call(*connection).ok());
  EXPECT_TRUE(destination_ == expected);
}

TEST_F(FaultTransportTest, ADroppedRequestIsNotHeard) {
  FaultTransport transport(local_, {{{.kind = FaultKind::kDropRequest, .first_call = 0}}});
  auto reply = call(*connect(transport));
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kDeadlineExceeded);
  EXPECT_EQ(num_heard_, 0);
}

TEST_F(FaultTransportTest, ADroppedReplyWasHeard) {
  FaultTransport transport(local_, {{{.kind = FaultKind::kDropReply, .first_call = 0}}});
  auto reply = call(*connect(transport));
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kDeadlineExceeded);
  EXPECT_EQ(num_heard_, 1);
}

TEST_F(FaultTransportTest, ALostPeerBreaksTheConnectionButNotTheNext) {
  FaultTransport transport(local_, {{{.kind = FaultKind::kLosePeer, .first_call = 1}}});
  const auto connection = connect(transport);
  ASSERT_TRUE(call(*connection).ok());
  for (int i = 0; i < 2; ++i) {
    auto reply = call(*connection);
    ASSERT_FALSE(reply.ok());
    EXPECT_EQ(reply.error().code, Errc::kPeerLost);
  }
  EXPECT_EQ(transport.num_calls(), 2);
  EXPECT_TRUE(call(*connect(transport)).ok());
}

}  // namespace
}  // namespace millrace::comm
