// SPDX-License-Identifier: Apache-2.0
// Peers that do not speak our protocol, and malformed frames and addresses. Bytes that UCX's own
// connection set-up cannot read are not tested, because UCX then ends the process (docs/adr/0003).
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "comm/net/address_scheme.h"
#include "comm/net/socket_address.h"
#include "comm/ucx/ucx_transport.h"
#include "comm/ucx/wire_frame.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

void send_raw(const SocketAddress& address, const std::string& bytes) {
  const int fd = socket(address.data()->sa_family, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::connect(fd, address.data(), address.size()), 0);
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  close(fd);
}

TEST(UcxHostilePeer, AProbeOfThePortLeavesTheServerServing) {
  auto transport = UcxTransport::create({.transports = UcxTransports::kTcp});
  ASSERT_TRUE(transport.ok());
  auto server = (*transport)->listen("127.0.0.1", 0, answer_with_pattern);
  ASSERT_TRUE(server.ok());
  const auto address = SocketAddress::parse(*without_scheme((*server)->address(), kUcxScheme));
  ASSERT_TRUE(address.ok());
  for (const std::string& bytes : {std::string(), std::string("x")}) {
    send_raw(*address, bytes);
  }

  auto connection = (*transport)->connect((*server)->address(), ample());
  ASSERT_TRUE(connection.ok()) << connection.error().to_string();
  std::vector<std::byte> destination(100'000);
  ASSERT_TRUE((*connection)->call(pattern_request(100'000, 3), destination, ample()).ok());
  EXPECT_TRUE(destination == pattern_payload(100'000));
}

// Whoever reaches UCX's ports can end the process.
TEST(UcxHostilePeer, AServerIsOpenToItsHostOnly) {
  auto transport = UcxTransport::create({.transports = UcxTransports::kTcp});
  ASSERT_TRUE(transport.ok());
  for (const char* host : {"0.0.0.0", "", "::"}) {
    const auto server = (*transport)->listen(host, 0, answer_with_pattern);
    ASSERT_FALSE(server.ok()) << host;
    EXPECT_EQ(server.error().code, Errc::kInvalidArgument);
  }
}

TEST(SocketAddress, KnowsWhichOnlyThisHostReaches) {
  for (const char* text : {"127.0.0.1:1", "127.255.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"}) {
    EXPECT_TRUE(SocketAddress::parse(text)->is_loopback()) << text;
  }
  for (const char* text :
       {"128.0.0.1:1", "10.0.0.7:1", "0.0.0.0:1", "[::]:1", "[fe80::1]:1", "[::ffff:10.0.0.7]:1"}) {
    EXPECT_FALSE(SocketAddress::parse(text)->is_loopback()) << text;
  }
}

TEST(UcxHostilePeer, FramesOfOtherSizeOrVersionAreRefused) {
  RequestFrame frame{.call = 7, .destination_bytes = 9};
  ASSERT_TRUE(read_frame<RequestFrame>(&frame, sizeof(frame)).has_value());
  EXPECT_EQ(read_frame<RequestFrame>(&frame, sizeof(frame))->call, 7u);
  EXPECT_FALSE(read_frame<RequestFrame>(&frame, sizeof(frame) - 1).has_value());
  EXPECT_FALSE(read_frame<RequestFrame>(&frame, 0).has_value());
  EXPECT_FALSE(read_frame<RequestFrame>(nullptr, sizeof(frame)).has_value());
  ++frame.version;
  EXPECT_FALSE(read_frame<RequestFrame>(&frame, sizeof(frame)).has_value());
}

TEST(SocketAddress, ReadsWhatItWrites) {
  for (const char* text : {"127.0.0.1:80", "10.1.2.3:65535", "[::1]:7000"}) {
    const auto address = SocketAddress::parse(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->to_string(), text);
  }
}

TEST(SocketAddress, RefusesWhatIsNone) {
  for (const char* text : {"", ":", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:0", "1.2.3.4:x",
                           "1.2.3.4:70000", "1.2.3.4:8 ", "1.2.3.4:-1"}) {
    EXPECT_FALSE(SocketAddress::parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace millrace::comm
