// SPDX-License-Identifier: Apache-2.0
// Which transport an address is for.
#include "comm/any/any_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local/local_transport.h"
#include "comm/net/address_scheme.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

using ::testing::HasSubstr;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

TEST(AddressScheme, IsWhatStandsInFront) {
  const auto split = split_scheme("tcp://[::1]:9000");
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->scheme, "tcp");
  EXPECT_EQ(split->where, "[::1]:9000");
  EXPECT_EQ(with_scheme("ucx", "a:1"), "ucx://a:1");
  EXPECT_EQ(*without_scheme("ucx://a:1", "ucx"), "a:1");
  EXPECT_EQ(without_scheme("tcp://a:1", "ucx").error().code, Errc::kUnsupported);
  for (const char* none : {"", "a:1", "://a:1", "//a:1"}) {
    EXPECT_EQ(split_scheme(none).error().code, Errc::kInvalidArgument) << none;
  }
}

TEST(AnyTransport, ConnectsByWhatSpeaksThere) {
  AnyTransport any(TcpOptions{});
  const auto server = *any.listen("127.0.0.1", 0, answer_with_pattern);
  EXPECT_TRUE(server->address().starts_with("tcp://127.0.0.1:"));
  const auto connection = any.connect(server->address(), ample());
  ASSERT_TRUE(connection.ok()) << connection.error().to_string();
  std::vector<std::byte> destination(1000);
  ASSERT_TRUE((*connection)->call(pattern_request(1000, 2), destination, ample()).ok());
  EXPECT_TRUE(destination == pattern_payload(1000));
}

TEST(AnyTransport, MakesWhatWasAddedWhenItIsNeeded) {
  AnyTransport any(TcpOptions{});
  int made = 0;
  any.add("other", [&]() -> Result<std::unique_ptr<Transport>> {
    ++made;
    return std::unique_ptr<Transport>(std::make_unique<LocalTransport>());
  });
  EXPECT_EQ(made, 0);
  for (int i = 0; i < 2; ++i) {
    // The transport that was made reports that nobody listens.
    EXPECT_EQ(any.connect("other://nobody:1", ample()).error().code, Errc::kPeerLost);
    EXPECT_EQ(made, 1);
  }
}

TEST(AnyTransport, SaysWhatItTakesWhereItCannotConnect) {
  AnyTransport any(TcpOptions{});
  const auto unknown = any.connect("ucx://127.0.0.1:9", ample());
  EXPECT_EQ(unknown.error().code, Errc::kUnsupported);
  EXPECT_THAT(unknown.error().message, HasSubstr("speaks ucx://; this client takes tcp:// tls://"));
  AnyTransport none(std::nullopt);
  EXPECT_EQ(none.connect("tcp://127.0.0.1:9", ample()).error().code, Errc::kUnsupported);
  EXPECT_EQ(any.connect("127.0.0.1:9", ample()).error().code, Errc::kInvalidArgument);
}

TEST(AnyTransport, ChecksTheFilesForTlsBeforehand) {
  EXPECT_FALSE(AnyTransport(TcpOptions{.client_tls = {.ca = "/nowhere.pem"}}).check_tls().ok());
}

}  // namespace
}  // namespace millrace::comm
