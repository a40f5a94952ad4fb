// SPDX-License-Identifier: Apache-2.0
// comm/tcp with TLS: the same bytes arrive, and unauthorised peers are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/net/address_scheme.h"
#include "comm/tcp/tcp_transport.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

using ::testing::HasSubstr;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class TcpTls : public testing::Test {
 protected:
  TcpTls() {
    const auto own = authority_.issue("IP:127.0.0.1");
    server_files_ = {.certificate = files_.write("cert", own.certificate),
                     .key = files_.write("key", own.key),
                     .ca = ""};
    ca_ = files_.write("ca", authority_.certificate());
  }

  void serve(const TlsFiles& files, const TcpLimits& limits = {}) {
    TcpTransport transport({.server_threads = 2, .limits = limits, .server_tls = files});
    auto server = transport.listen("127.0.0.1", 0, answer_with_pattern);
    ASSERT_TRUE(server.ok()) << server.error().to_string();
    server_ = std::move(*server);
  }
  Result<std::unique_ptr<TransportConnection>> connect(const TlsFiles& files) {
    return TcpTransport({.client_tls = files}).connect(server_->address(), ample());
  }
  void expect_pattern(TransportConnection& connection, int64_t num_bytes, int num_pieces) {
    std::vector<std::byte> destination(static_cast<size_t>(num_bytes));
    // Received in other pieces than those it was sent in.
    std::vector<std::span<std::byte>> pieces;
    for (size_t at = 0; at < destination.size(); at += 5001) {
      pieces.push_back(
          std::span(destination).subspan(at, std::min<size_t>(5001, destination.size() - at)));
    }
    const auto reply =
        connection.call_into(pattern_request(num_bytes, num_pieces), pieces, ample());
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    EXPECT_TRUE(destination == pattern_payload(num_bytes)) << num_bytes;
  }

  test::CertificateAuthority authority_;
  test::TempDirectory files_;
  TlsFiles server_files_;
  std::string ca_;
  std::unique_ptr<TransportServer> server_;
};

TEST_F(TcpTls, PayloadsArriveByteExact) {
  serve(server_files_);
  EXPECT_TRUE(server_->address().starts_with("tls://127.0.0.1:")) << server_->address();
  const auto connection = connect({.ca = ca_});
  ASSERT_TRUE(connection.ok()) << connection.error().to_string();
  for (const int64_t num_bytes : {0, 1, 8192, 1 << 20, 20 << 20}) {
    for (const int num_pieces : {1, 3, 640}) expect_pattern(**connection, num_bytes, num_pieces);
  }
  EXPECT_EQ((*connection)->transport_name(), "tcp");
}

TEST_F(TcpTls, SeveralClientsAtOnce) {
  serve(server_files_);
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([this, i] {
      const auto connection = connect({.ca = ca_});
      ASSERT_TRUE(connection.ok());
      for (int j = 0; j < 10; ++j) expect_pattern(**connection, 100'000 * (i + 1) + j, 5);
    });
  }
  for (auto& client : clients) client.join();
}

TEST_F(TcpTls, ServersThatAreNotTrustedAreNotTold) {
  serve(server_files_);
  const test::CertificateAuthority others;
  for (const TlsFiles& files :
       {TlsFiles{}, TlsFiles{.ca = files_.write("other", others.certificate())}}) {
    const auto connection = connect(files);
    ASSERT_FALSE(connection.ok());
    EXPECT_EQ(connection.error().code, Errc::kDenied);
    EXPECT_THAT(connection.error().message, HasSubstr("certificate"));
  }
}

TEST_F(TcpTls, ACertificateOfAnotherHostIsRefused) {
  const auto other = authority_.issue("IP:127.0.0.2");
  serve({.certificate = files_.write("cert2", other.certificate),
         .key = files_.write("key2", other.key),
         .ca = ""});
  const auto connection = connect({.ca = ca_});
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code, Errc::kDenied);
  EXPECT_THAT(connection.error().message, HasSubstr("IP address mismatch"));
}

TEST_F(TcpTls, WithACaClientsNeedACertificate) {
  server_files_.ca = ca_;
  serve(server_files_);
  EXPECT_EQ(connect({.ca = ca_}).error().code, Errc::kDenied);
  const auto own = authority_.issue("DNS:node");
  const auto connection = connect({.certificate = files_.write("node", own.certificate),
                                   .key = files_.write("node.key", own.key),
                                   .ca = ca_});
  ASSERT_TRUE(connection.ok()) << connection.error().to_string();
  expect_pattern(**connection, 100'000, 3);
  const test::CertificateAuthority others;
  const auto foreign = others.issue("DNS:node");
  EXPECT_EQ(connect({.certificate = files_.write("foreign", foreign.certificate),
                     .key = files_.write("foreign.key", foreign.key),
                     .ca = ca_})
                .error()
                .code,
            Errc::kDenied);
}

TEST_F(TcpTls, WhoMixesUpTheSchemesIsRefused) {
  serve(server_files_, {.hello = std::chrono::milliseconds(100)});
  const auto where = split_scheme(server_->address())->where;
  const auto plain = TcpTransport({}).connect(with_scheme(kTcpScheme, where), ample());
  EXPECT_FALSE(plain.ok());
  TcpTransport unencrypted({.limits = {.hello = std::chrono::milliseconds(100)}});
  const auto server = *unencrypted.listen("127.0.0.1", 0, answer_with_pattern);
  const auto encrypted =
      TcpTransport({.client_tls = {.ca = ca_}})
          .connect(with_scheme(kTlsScheme, split_scheme(server->address())->where), ample());
  ASSERT_FALSE(encrypted.ok());
  EXPECT_EQ(encrypted.error().code, Errc::kDenied);
}

TEST_F(TcpTls, ANewCertificateNeedsNoRestart) {
  serve(server_files_);
  ASSERT_TRUE(connect({.ca = ca_}).ok());
  // Half of a change of certificates: the one that was read before stays in use.
  const test::CertificateAuthority next;
  const auto own = next.issue("IP:127.0.0.1");
  files_.write("cert", own.certificate);
  EXPECT_TRUE(connect({.ca = ca_}).ok());
  files_.write("key", own.key);
  EXPECT_FALSE(connect({.ca = ca_}).ok());
  const auto connection = connect({.ca = files_.write("next", next.certificate())});
  ASSERT_TRUE(connection.ok()) << connection.error().to_string();
  expect_pattern(**connection, 1000, 1);
}

TEST_F(TcpTls, FilesThatAreNoneAreToldAtTheStart) {
  TcpTransport transport({.server_tls = {.certificate = files_.file("none"), .key = "", .ca = ""}});
  EXPECT_FALSE(transport.listen("127.0.0.1", 0, answer_with_pattern).ok());
}

}  // namespace
}  // namespace millrace::comm
