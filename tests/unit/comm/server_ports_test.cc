// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/server_ports.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/system/file_descriptor.h"

namespace millrace::comm {
namespace {

using testing::ElementsAre;

TEST(ServerPorts, AreJoinedAndSplit) {
  EXPECT_EQ(join_ports("10.0.0.7:9000", {}), "10.0.0.7:9000");
  EXPECT_EQ(join_ports("[::1]:9000", std::vector<int>{41873, 3}), "[::1]:9000,41873,3");
  EXPECT_THAT(*split_ports("10.0.0.7:9000"), ElementsAre("10.0.0.7:9000"));
  EXPECT_THAT(*split_ports("[::1]:9000,41873,3"),
              ElementsAre("[::1]:9000", "[::1]:41873", "[::1]:3"));
}

TEST(ServerPorts, OfTextWithoutAny) {
  EXPECT_EQ(split_ports("10.0.0.7").error().code, Errc::kInvalidArgument);
  // SocketAddress::parse refuses what is not a port.
  EXPECT_THAT(*split_ports("a:1,"), ElementsAre("a:1", "a:"));
  EXPECT_THAT(*split_ports("a:"), ElementsAre("a:"));
}

// The process has no other threads here.
class RangeOfPorts : public testing::Test {
 protected:
  ~RangeOfPorts() override { ::unsetenv("UCX_TCP_PORT_RANGE"); }
  static Result<std::vector<SocketAddress>> further(const std::string& range) {
    ::setenv("UCX_TCP_PORT_RANGE", range.c_str(), 1);
    return further_addresses(*SocketAddress::parse("127.0.0.1:9000"));
  }
};

TEST_F(RangeOfPorts, IsKept) {
  EXPECT_EQ(further("0")->front().port(), 0);
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  const auto any = *SocketAddress::resolve("127.0.0.1", 0);
  ASSERT_EQ(::bind(socket.get(), any.data(), any.size()), 0);
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  const int taken = SocketAddress::of_socket(socket.get())->port();
  EXPECT_EQ(further(fmt::format("{}", taken)).error().code, Errc::kExhausted);

  // Among so many ports some are free.
  const int first = std::min(taken, 65000);
  const int last = first + 500;
  const auto free = further(fmt::format("{}-{}", first, last));
  ASSERT_TRUE(free.ok()) << free.error().to_string();
  for (const SocketAddress& address : *free) {
    EXPECT_TRUE(address.port() >= first && address.port() <= last && address.port() != taken);
    EXPECT_THAT(address.to_string(), testing::StartsWith("127.0.0.1:"));
  }
  ::unsetenv("UCX_TCP_PORT_RANGE");
  EXPECT_EQ(further_addresses(any)->front().to_string(), "127.0.0.1:0");
}

TEST_F(RangeOfPorts, ThatIsNone) {
  for (const char* none : {"", "a", "9000-", "-9000", "9000-8999", "9000-70000", "1 - 2", "1-2x"}) {
    EXPECT_EQ(further(none).error().code, Errc::kInvalidArgument) << none;
  }
}

}  // namespace
}  // namespace millrace::comm
