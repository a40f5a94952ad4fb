// SPDX-License-Identifier: Apache-2.0
#include "common/host_port.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(HostPort, IsANameOrAnAddressAndAPort) {
  for (const auto& [text, host, port] :
       {std::tuple("node-7:8001", "node-7", 8001), std::tuple("127.0.0.1:1", "127.0.0.1", 1),
        std::tuple("[::1]:8001", "::1", 8001),
        std::tuple("[fe80::2%eth0]:65535", "fe80::2%eth0", 65535),
        std::tuple("::1:8001", "::1", 8001)}) {
    const auto parsed = HostPort::parse(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, port);
  }
}

TEST(HostPort, AnythingElseIsRefused) {
  for (const char* text : {"", ":", "host", "host:", ":80", "host:0", "host:65536", "host:80x",
                           "[]:80", "[::1]", "[::1:80", "::1]:80", "[::1]80", "[[::1]]:80"}) {
    const auto parsed = HostPort::parse(text);
    EXPECT_FALSE(parsed.ok()) << text;
  }
}

TEST(HostPort, OnlyAnIpv6AddressIsShownInBrackets) {
  EXPECT_EQ((HostPort{.host = "::1", .port = 8001}).to_string(), "[::1]:8001");
  EXPECT_EQ((HostPort{.host = "10.0.0.7", .port = 8001}).to_string(), "10.0.0.7:8001");
  EXPECT_EQ((HostPort{.host = "node-7", .port = 8001}).to_string(), "node-7:8001");
}

}  // namespace
}  // namespace millrace
