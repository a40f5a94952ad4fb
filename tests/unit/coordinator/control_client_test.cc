// SPDX-License-Identifier: Apache-2.0
// The group's end of the control connection, against a coordinator.
#include "worker/control/control_client.h"
#include "common/errc_wire.h"

#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "protocol/codec.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/coordinator/loopback.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

using worker::ControlBoard;
using worker::ControlClient;
using worker::ControlEvent;
using worker::ControlOptions;

constexpr auto kPatience = std::chrono::seconds(20);

ControlOptions options_for(uint16_t port, const std::string& id = "g0") {
  ControlOptions options;
  options.port = port;
  options.first_retry = std::chrono::milliseconds(5);
  options.last_retry = std::chrono::milliseconds(20);
  auto& description = options.description;
  description.set_protocol_version(protocol::kProtocolVersion);
  description.set_group_id(id);
  description.set_group_name("group-0");
  description.set_max_prompt_tokens(1000);
  description.mutable_model()->set_name("tiny");
  description.mutable_model()->set_vocab_size(100);
  description.mutable_model()->set_num_layers(1);
  return options;
}

ControlEvent next(ControlClient& client) {
  auto event = client.wait(Deadline::after(kPatience));
  EXPECT_TRUE(event.has_value());
  return event ? *std::move(event) : ControlEvent{};
}

class SilentCoordinator {
 public:
  explicit SilentCoordinator(uint32_t heartbeat_interval_ms)
      : heartbeat_interval_ms_(heartbeat_interval_ms), listener_(listen_loopback(&port_)) {}
  ~SilentCoordinator() {
    ::close(listener_);
    if (peer_ >= 0) ::close(peer_);
  }
  uint16_t port() const { return port_; }
  void let_in() {
    peer_ = ::accept(listener_, nullptr, nullptr);
    ASSERT_GE(peer_, 0);
    protocol::Envelope reply;
    reply.mutable_register_reply()->set_heartbeat_interval_ms(heartbeat_interval_ms_);
    ASSERT_TRUE(send_all(peer_, protocol::encode_frame(reply).value()));
  }

 private:
  uint32_t heartbeat_interval_ms_;
  uint16_t port_ = 0;
  int listener_ = -1;
  int peer_ = -1;
};

TEST(ControlClient, ServesARequestOfTheCoordinator) {
  RunningServer server;
  ControlBoard board;
  ControlClient client(options_for(server.group_port()), board);
  ASSERT_TRUE(client.wait_connected(Deadline::after(kPatience)).ok());
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  RawHttp http(server.http_port());
  http.send_request("POST", "/v1/prefill",
                    R"({"model":"tiny","request_id":"r","prompt_token_ids":[5]})");
  const ControlEvent event = next(client);
  ASSERT_TRUE(event.message.has_prefill_request());
  protocol::Envelope done;
  done.mutable_prefill_done()->set_request_id("r");
  done.mutable_prefill_done()->mutable_manifest()->set_first_token_id(9);
  ASSERT_TRUE(client.send(done).ok());
  EXPECT_EQ(http.read_reply().json().at("first_token_id").as_int64(), 9);
}

TEST(ControlClient, ItsMetricsShowAtTheCoordinator) {
  ServerOptions options = patient_options();
  options.scheduler.heartbeat_interval = std::chrono::milliseconds(10);
  RunningServer server(options);
  protocol::Metric metric;
  metric.set_name("millrace_pool_bytes");
  metric.set_help("Pool");
  metric.set_value(42);
  ControlBoard board;
  board.post({metric}, /*free_prompt_tokens=*/1000);
  ControlClient client(options_for(server.group_port()), board);
  const Deadline deadline = Deadline::after(kPatience);
  std::string text;
  while (!deadline.passed() && text.find("millrace_pool_bytes") == std::string::npos) {
    text = http_call(server.http_port(), "GET", "/metrics").body;
  }
  EXPECT_NE(text.find("millrace_pool_bytes{group=\"group-0\"} 42"), std::string::npos);
}

TEST(ControlClient, SaysThatTheCoordinatorIsGoneAndComesBackToItsSuccessor) {
  auto first = std::make_unique<RunningServer>();
  const uint16_t port = first->group_port();
  ControlBoard board;
  ControlClient client(options_for(port), board);
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  first.reset();
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kDisconnected);
  protocol::Envelope drain;
  drain.mutable_drain();
  EXPECT_EQ(client.send(drain).error().code, Errc::kPeerLost);
  ServerOptions options = patient_options();
  options.group_port = port;
  RunningServer second(options);
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  EXPECT_EQ(http_call(second.http_port(), "GET", "/ready").status, 200);
}

TEST(ControlClient, TellsACoordinatorThatWasStartedAnewWhichLeasesItHolds) {
  protocol::PrefillDone done;
  done.set_request_id("r");
  done.mutable_manifest()->set_model("tiny");
  done.mutable_manifest()->set_request_id("r");
  done.mutable_manifest()->set_lease_id("lease-1");
  done.mutable_manifest()->set_lease_ms(60000);
  done.mutable_manifest()->set_first_token_id(9);
  ControlBoard board;
  board.hold(done);
  RunningServer server;  // it has not seen the request
  ControlClient client(options_for(server.group_port()), board);
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  const auto call = [&](const char* method, const char* target, const char* body = "") {
    return http_call(server.http_port(), method, target, body);
  };
  const Deadline deadline = Deadline::after(kPatience);
  RawReply found = call("GET", "/v1/prefill/r");
  while (found.status == 404 && !deadline.passed()) found = call("GET", "/v1/prefill/r");
  ASSERT_EQ(found.status, 200) << found.body;
  EXPECT_EQ(found.json().at("first_token_id").as_int64(), 9);
  EXPECT_EQ(found.json().at("lease").at("state").as_string(), "active");
  EXPECT_EQ(call("POST", "/v1/prefill/r/lease:release", R"({"lease_id":"lease-1"})").status, 200);
  EXPECT_EQ(next(client).message.lease_release().lease_id(), "lease-1");
}

TEST(ControlClient, GivesUpWhenItIsRefusedForGood) {
  RunningServer server;
  ControlOptions options = options_for(server.group_port());
  options.description.set_protocol_version(99);
  ControlBoard board;
  ControlClient client(options, board);
  const auto connected = client.wait_connected(Deadline::after(kPatience));
  EXPECT_EQ(connected.error().code, Errc::kUnavailable);
  EXPECT_NE(connected.error().message.find("version 99"), std::string::npos);
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kRefused);
}

TEST(ControlClient, TakesOverOnceItsPredecessorOfTheSameNameIsGone) {
  RunningServer server;
  ControlBoard board;
  auto predecessor = std::make_unique<ControlClient>(options_for(server.group_port()), board);
  ASSERT_TRUE(predecessor->wait_connected(Deadline::after(kPatience)).ok());
  ControlClient successor(options_for(server.group_port(), "g1"), board);
  EXPECT_EQ(successor.wait_connected(Deadline::after(std::chrono::milliseconds(50))).error().code,
            Errc::kDeadlineExceeded);
  predecessor.reset();
  EXPECT_TRUE(successor.wait_connected(Deadline::after(kPatience)).ok());
}

TEST(ControlClient, ACoordinatorThatFallsSilentCountsAsGone) {
  // A listener that accepts, lets the group in, and then stays silent.
  SilentCoordinator coordinator(/*heartbeat_interval_ms=*/10);
  ControlBoard board;
  ControlClient client(options_for(coordinator.port()), board);
  coordinator.let_in();
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  const ControlEvent event = next(client);
  EXPECT_EQ(event.kind, ControlEvent::Kind::kDisconnected);
  EXPECT_NE(event.why.find("silent for"), std::string::npos) << event.why;
}

TEST(ControlClient, EndsAtOnceWhileNobodyListens) {
  uint16_t port = 0;
  {
    RunningServer gone;
    port = gone.group_port();
  }
  ControlBoard board;
  ControlClient client(options_for(port), board);
  EXPECT_EQ(client.wait_connected(Deadline::after(std::chrono::milliseconds(20))).error().code,
            Errc::kDeadlineExceeded);
}

class ControlTls : public ::testing::Test {
 protected:
  // Files for one side, with names that begin with `who`.
  TlsFiles files(const std::string& who, const test::CertificateAuthority& signs,
                 const test::CertificateAuthority& trusted) {
    const test::Certificate own = signs.issue("IP:127.0.0.1");
    return {.certificate = files_.write(who + "-cert", own.certificate),
            .key = files_.write(who + "-key", own.key),
            .ca = files_.write(who + "-ca", trusted.certificate())};
  }
  ServerOptions server_options() {
    ServerOptions options = patient_options();
    options.group_tls = files("coordinator", authority_, authority_);
    return options;
  }
  Result<void> joins(const RunningServer& server, const TlsFiles& tls, const std::string& id = "g0",
                     Duration patience = kPatience) {
    ControlOptions options = options_for(server.group_port(), id);
    options.tls = tls;
    ControlBoard board;
    ControlClient client(options, board);
    return client.wait_connected(Deadline::after(patience));
  }
  // Long enough for several attempts.
  bool stays_out(const RunningServer& server, const TlsFiles& tls) {
    return !joins(server, tls, "stranger", std::chrono::milliseconds(300)).ok();
  }

  test::TempDirectory files_;
  test::CertificateAuthority authority_;
  test::CertificateAuthority other_;
};

TEST_F(ControlTls, AGroupWithACertificateOfTheAuthorityJoinsAndIsHeard) {
  RunningServer server(server_options());
  ControlOptions options = options_for(server.group_port());
  options.tls = files("group", authority_, authority_);
  ControlBoard board;
  ControlClient client(options, board);
  const Result<void> joined = client.wait_connected(Deadline::after(kPatience));
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  auto reply = std::async(std::launch::async, [&] {
    return http_call(server.http_port(), "POST", "/v1/prefill",
                     R"({"model":"tiny","prompt_token_ids":[1],"request_id":"r"})");
  });
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  const ControlEvent request = next(client);
  EXPECT_EQ(request.message.prefill_request().request_id(), "r");
  protocol::Envelope failed;
  failed.mutable_prefill_failed()->set_request_id("r");
  failed.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(Errc::kUnsupported));
  ASSERT_TRUE(client.send(failed).ok());
  EXPECT_EQ(reply.get().status, 501);
}

TEST_F(ControlTls, AStrangerStaysOut) {
  RunningServer server(server_options());
  EXPECT_TRUE(stays_out(server, {}));  // does not encrypt
  EXPECT_TRUE(stays_out(server, files("stranger", other_, authority_)));
  EXPECT_EQ(http_call(server.http_port(), "GET", "/ready").status, 503);
  EXPECT_TRUE(joins(server, files("group", authority_, authority_)).ok());
}

TEST_F(ControlTls, AGroupRefusesAStrangeCoordinator) {
  RunningServer server(server_options());
  EXPECT_TRUE(stays_out(server, files("group", authority_, other_)));
}

TEST_F(ControlTls, SilenceInTheHandshakeEndsIt) {
  ServerOptions options = server_options();
  options.http.group_handshake = std::chrono::milliseconds(50);
  RunningServer server(options);
  const int silent = connect_loopback(server.group_port());
  EXPECT_TRUE(read_until_closed(silent));
  ::close(silent);
}

TEST_F(ControlTls, BothSidesTakeNewFilesForTheNextConnection) {
  RunningServer server(server_options());
  ASSERT_TRUE(joins(server, files("group", authority_, authority_)).ok());
  files("coordinator", other_, other_);
  server.reload();
  ControlOptions options = options_for(server.group_port(), "g1");
  options.tls = files("group", authority_, authority_);
  ControlBoard board;
  ControlClient client(options, board);
  EXPECT_FALSE(client.wait_connected(Deadline::after(std::chrono::milliseconds(300))).ok());
  files("group", other_, other_);
  const Result<void> joined = client.wait_connected(Deadline::after(kPatience));
  EXPECT_TRUE(joined.ok()) << joined.error().message;
}

}  // namespace
}  // namespace millrace::coordinator
