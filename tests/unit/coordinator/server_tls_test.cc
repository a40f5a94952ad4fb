// SPDX-License-Identifier: Apache-2.0
// HTTP over TLS: who is let in, who is not, and that neither garbage nor silence occupies a place.
#include <openssl/ssl.h>
#include <unistd.h>

#include <future>

#include "client/http_client.h"
#include "coordinator/server/server.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/loopback.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

using client::HttpClient;

// A TLS client in plain OpenSSL, which checks nothing.
class RawTls {
 public:
  explicit RawTls(uint16_t port, int max_version = TLS1_3_VERSION)
      : socket_(connect_loopback(port)),
        context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free),
        ssl_(nullptr, &SSL_free) {
    SSL_CTX_set_security_level(context_.get(), 0);  // for versions that are too old
    SSL_CTX_set_max_proto_version(context_.get(), max_version);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_);
  }
  ~RawTls() { ::close(socket_); }

  bool shake_hands() { return SSL_connect(ssl_.get()) == 1; }
  void send(const std::string& bytes) {
    ASSERT_EQ(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())),
              static_cast<int>(bytes.size()));
  }
  // Reads until the connection ends.
  std::string read_all() {
    std::string out;
    char piece[4096];
    for (int got = 0; (got = SSL_read(ssl_.get(), piece, sizeof piece)) > 0;)
      out.append(piece, got);
    return out;
  }
  bool said_goodbye() { return SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN; }
  // Sends close_notify and ends this side.
  void leave() {
    SSL_shutdown(ssl_.get());
    ::close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

class ServerTlsTest : public ::testing::Test {
 protected:
  ServerTlsTest() { use(authority_.issue("IP:127.0.0.1")); }

  void use(const test::Certificate& own) {
    files_.write("cert", own.certificate);
    files_.write("key", own.key);
  }
  ServerOptions options() {
    ServerOptions out = patient_options();
    out.admin_port = 0;
    out.http_tls = {.certificate = files_.file("cert"), .key = files_.file("key"), .ca = ""};
    return out;
  }
  // One call of a client that trusts `authority`.
  Result<client::HttpAnswer> call(RunningServer& server,
                                  const test::CertificateAuthority& authority,
                                  const client::HttpCall& what) {
    auto tls = make_client_tls({.ca = files_.write("ca", authority.certificate())});
    EXPECT_TRUE(tls.ok());
    const HttpClient client(
        {.host = "127.0.0.1", .port = std::to_string(server.http_port()), .encrypted = true},
        {.token = "", .tls = *tls});
    return client.call(what, std::chrono::seconds(20));
  }

  test::CertificateAuthority authority_;
  test::TempDirectory files_;
};

const client::HttpCall kVersion{"GET", "/version", "", ""};

TEST_F(ServerTlsTest, AClientThatTrustsTheAuthorityIsServed) {
  RunningServer server(options());
  const auto answer = call(server, authority_, kVersion);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
}

TEST_F(ServerTlsTest, ALongPromptAndItsEventsPass) {
  RunningServer server(options());
  FakeGroup group(server.group_port());
  FakeModel model;
  model.max_prompt_tokens = 1'000'000;
  group.join(FakeGroup::description("group-0", "g0", model));
  auto answer = std::async(std::launch::async, [&] {
    return call(server, authority_,
                {"POST", "/v1/prefill?model=tiny&stream=true", "application/octet-stream",
                 std::string(3'000'000, '\0')});
  });
  const protocol::PrefillRequest request = group.receive_request();
  EXPECT_EQ(request.prompt_token_ids().size(), 3'000'000u);
  group.serve(request);
  const auto got = answer.get();
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->status, 200);
}

TEST_F(ServerTlsTest, AClientRefusesAStrangersCertificate) {
  RunningServer server(options());
  const test::CertificateAuthority other;
  const auto answer = call(server, other, kVersion);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, Errc::kUnavailable);
  EXPECT_NE(answer.error().message.find("certificate verify failed"), std::string::npos)
      << answer.error().message;
}

TEST_F(ServerTlsTest, AClientRefusesACertificateOfAnotherHost) {
  use(authority_.issue("DNS:elsewhere.example"));
  RunningServer server(options());
  const auto answer = call(server, authority_, kVersion);
  ASSERT_FALSE(answer.ok());
  EXPECT_TRUE(answer.error().message.ends_with(": the certificate is for another host"))
      << answer.error().message;
}

TEST_F(ServerTlsTest, AClientSaysThatTheServerHasNoTls) {
  RunningServer server(patient_options());
  const auto answer = call(server, authority_, kVersion);
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().message.find("the other side does not use TLS"), std::string::npos)
      << answer.error().message;
}

TEST_F(ServerTlsTest, AClientWithoutTlsNamesWhatElseThePortMayWant) {
  RunningServer server(options());
  for (const uint16_t port : {server.http_port(), server.group_port()}) {
    const HttpClient client({.host = "127.0.0.1", .port = std::to_string(port)}, {});
    const auto answer = client.call(kVersion, std::chrono::seconds(20));
    ASSERT_FALSE(answer.ok());
    EXPECT_TRUE(
        answer.error().message.starts_with(fmt::format("no answer from 127.0.0.1:{}: ", port)))
        << answer.error().message;
    EXPECT_NE(answer.error().message.find("https://"), std::string::npos) << answer.error().message;
  }
}

TEST_F(ServerTlsTest, VersionsBelow12AreRefused) {
  RunningServer server(options());
  EXPECT_FALSE(RawTls(server.http_port(), TLS1_1_VERSION).shake_hands());
  EXPECT_TRUE(RawTls(server.http_port(), TLS1_2_VERSION).shake_hands());
  EXPECT_TRUE(RawTls(server.http_port(), TLS1_3_VERSION).shake_hands());
}

TEST_F(ServerTlsTest, TheServerSaysGoodbye) {
  RunningServer server(options());
  RawTls client(server.http_port());
  ASSERT_TRUE(client.shake_hands());
  client.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.read_all().ends_with(R"({"status":"alive"})"));
  EXPECT_TRUE(client.said_goodbye());
}

TEST_F(ServerTlsTest, PlainHttpIsNotAnswered) {
  RunningServer server(options());
  RawHttp client(server.http_port());
  client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_TRUE(call(server, authority_, kVersion).ok());
}

TEST_F(ServerTlsTest, ThePortForProbesIsNotEncrypted) {
  RunningServer server(options());
  EXPECT_EQ(http_call(server.admin_port(), "GET", "/health").status, 200);
}

TEST_F(ServerTlsTest, AHandshakeEndsWithTheTimeForAHeader) {
  ServerOptions hasty = options();
  hasty.http.idle = std::chrono::milliseconds(50);
  RunningServer server(hasty);
  const int silent = connect_loopback(server.http_port());
  const int garbled = connect_loopback(server.http_port());
  const int halfway = connect_loopback(server.http_port());
  send_all(garbled, std::string(600, '\0'));
  send_all(halfway, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  for (const int socket : {silent, garbled, halfway}) {
    EXPECT_TRUE(read_until_closed(socket));
    ::close(socket);
  }
}

TEST_F(ServerTlsTest, TheFirstHeaderHasOnlyTheTimeThatTheHandshakeLeft) {
  ServerOptions hasty = options();
  hasty.http.idle = std::chrono::seconds(1);  // enough to shake hands in
  RunningServer server(hasty);
  RawTls client(server.http_port());
  ASSERT_TRUE(client.shake_hands());
  EXPECT_EQ(client.read_all(), "");  // ends by itself
}

TEST_F(ServerTlsTest, AHandshakeHoldsAPlace) {
  ServerOptions one = options();
  one.http.max_connections = 1;
  RunningServer server(one);
  RawTls held(server.http_port());
  ASSERT_TRUE(held.shake_hands());
  EXPECT_EQ(call(server, authority_, {"GET", "/health", "", ""})->status, 200);
  EXPECT_EQ(call(server, authority_, kVersion)->status, 503);
}

TEST_F(ServerTlsTest, AClientThatLeavesCancelsItsRequest) {
  RunningServer server(options());
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawTls client(server.http_port());
  ASSERT_TRUE(client.shake_hands());
  const std::string body = R"({"model":"tiny","prompt_token_ids":[1]})";
  client.send(fmt::format("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}",
                          body.size(), body));
  const std::string id = group.receive_request().request_id();
  client.leave();
  const protocol::Envelope next = group.receive();
  EXPECT_EQ(next.cancel().request_id(), id);
}

TEST_F(ServerTlsTest, NewCertificatesAreReadWhenAskedAndBadOnesAreNot) {
  RunningServer server(options());
  const test::CertificateAuthority next;
  ASSERT_FALSE(call(server, next, kVersion).ok());
  use(next.issue("IP:127.0.0.1"));
  server.reload();
  const Deadline patience = Deadline::after(std::chrono::seconds(10));
  while (!call(server, next, kVersion).ok() && !patience.passed()) {
  }
  EXPECT_FALSE(call(server, authority_, kVersion).ok());
  files_.write("key", "nonsense");
  server.reload();
  EXPECT_TRUE(call(server, next, kVersion).ok());
}

TEST_F(ServerTlsTest, ACertificateThatHasExpiredDoesNotReplaceAValidOne) {
  RunningServer server(options());
  ASSERT_TRUE(call(server, authority_, kVersion).ok());
  const auto expired = authority_.issue("IP:127.0.0.1", -7200, -3600);
  files_.write("cert", expired.certificate);
  files_.write("key", expired.key);
  server.reload();
  EXPECT_TRUE(call(server, authority_, kVersion).ok());
}

TEST_F(ServerTlsTest, AServerWithAnExpiredCertificateDoesNotStart) {
  const auto expired = authority_.issue("IP:127.0.0.1", -7200, -3600);
  files_.write("cert", expired.certificate);
  files_.write("key", expired.key);
  const auto created = Server::create(options());
  ASSERT_FALSE(created.ok());
  EXPECT_NE(created.error().message.find("expired on"), std::string::npos);
}

TEST_F(ServerTlsTest, AServerWithBadFilesDoesNotStart) {
  files_.write("key", authority_.issue("IP:127.0.0.1").key);
  EXPECT_FALSE(Server::create(options()).ok());
}

}  // namespace
}  // namespace millrace::coordinator
