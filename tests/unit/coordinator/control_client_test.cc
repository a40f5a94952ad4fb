// The group's end of the control connection, against a coordinator.
#include "worker/control_client.h"

#include <sys/socket.h>
#include <unistd.h>

#include "protocol/codec.h"
#include "tests/unit/coordinator/loopback.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

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

std::vector<protocol::Metric> no_metrics() {
  return {};
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
  ControlClient client(options_for(server.group_port()), no_metrics);
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
  options.scheduler.missed_heartbeats = 1000;
  RunningServer server(options);
  ControlClient client(options_for(server.group_port()), [] {
    protocol::Metric metric;
    metric.set_name("millrace_pool_bytes");
    metric.set_help("Pool");
    metric.set_value(42);
    return std::vector{metric};
  });
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
  ControlClient client(options_for(port), no_metrics);
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

TEST(ControlClient, GivesUpWhenItIsRefusedForGood) {
  RunningServer server;
  ControlOptions options = options_for(server.group_port());
  options.description.set_protocol_version(99);
  ControlClient client(options, no_metrics);
  const auto connected = client.wait_connected(Deadline::after(kPatience));
  EXPECT_EQ(connected.error().code, Errc::kUnavailable);
  EXPECT_NE(connected.error().message.find("version 99"), std::string::npos);
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kRefused);
}

TEST(ControlClient, TakesOverOnceItsPredecessorOfTheSameNameIsGone) {
  RunningServer server;
  auto predecessor = std::make_unique<ControlClient>(options_for(server.group_port()), no_metrics);
  ASSERT_TRUE(predecessor->wait_connected(Deadline::after(kPatience)).ok());
  ControlClient successor(options_for(server.group_port(), "g1"), no_metrics);
  EXPECT_EQ(successor.wait_connected(Deadline::after(std::chrono::milliseconds(50))).error().code,
            Errc::kDeadlineExceeded);
  predecessor.reset();
  EXPECT_TRUE(successor.wait_connected(Deadline::after(kPatience)).ok());
}

TEST(ControlClient, ACoordinatorThatFallsSilentCountsAsGone) {
  // A listener that accepts, lets the group in, and never says a word again.
  SilentCoordinator coordinator(/*heartbeat_interval_ms=*/10);
  ControlClient client(options_for(coordinator.port()), no_metrics);
  coordinator.let_in();
  EXPECT_EQ(next(client).kind, ControlEvent::Kind::kConnected);
  const ControlEvent event = next(client);
  EXPECT_EQ(event.kind, ControlEvent::Kind::kDisconnected);
  EXPECT_NE(event.why.find("nothing heard"), std::string::npos) << event.why;
}

TEST(ControlClient, EndsAtOnceWhileNobodyListens) {
  uint16_t port = 0;
  {
    RunningServer gone;
    port = gone.group_port();
  }
  ControlClient client(options_for(port), no_metrics);
  EXPECT_EQ(client.wait_connected(Deadline::after(std::chrono::milliseconds(20))).error().code,
            Errc::kDeadlineExceeded);
}

}  // namespace
}  // namespace millrace::coordinator
