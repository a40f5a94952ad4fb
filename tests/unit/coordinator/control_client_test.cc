// The group's end of the control connection, against a coordinator.
#include "worker/control/control_client.h"

#include <sys/socket.h>
#include <unistd.h>

#include "protocol/codec.h"
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
  // A listener that accepts, lets the group in, and never says a word again.
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

}  // namespace
}  // namespace millrace::coordinator
