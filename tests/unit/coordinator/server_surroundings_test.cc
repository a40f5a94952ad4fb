// SPDX-License-Identifier: Apache-2.0
// What surrounds a coordinator: strangers at its group port, what they make the log say, signals,
// and pools of connections in front of it.
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <mutex>

#include "coordinator/server/server.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

constexpr const char* kPrompt = R"({"model":"tiny","request_id":"r","prompt_token_ids":[1]})";

// Keeps the lines of the default logger while it lives.
class LogLines {
 public:
  LogLines() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_));
  }
  ~LogLines() { spdlog::set_default_logger(before_); }

  int count(const std::string& text) const {
    const std::lock_guard lock(sink_->kept);
    return static_cast<int>(
        std::count_if(sink_->lines.begin(), sink_->lines.end(),
                      [&](const auto& line) { return line.find(text) != std::string::npos; }));
  }

 private:
  struct Sink final : spdlog::sinks::base_sink<std::mutex> {
    void sink_it_(const spdlog::details::log_msg& message) override {
      const std::lock_guard lock(kept);
      lines.push_back(
          fmt::format("{}: {}", spdlog::level::to_string_view(message.level),
                      fmt::string_view(message.payload.data(), message.payload.size())));
    }
    void flush_() override {}
    std::mutex kept;
    std::vector<std::string> lines;
  };
  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  const std::shared_ptr<spdlog::logger> before_;
};

ServerOptions with_groups(const GroupLimits& limits) {
  ServerOptions options = patient_options();
  options.groups = limits;
  options.http.group_handshake = std::chrono::minutes(10);  // silence alone ends nobody
  return options;
}

TEST(ServerGroupPort, AGroupThatLeavesWhileDrainingIsNoReasonForAWarning) {
  const LogLines lines;
  {
    RunningServer server(patient_options());
    FakeGroup drained(server.group_port());
    drained.join(FakeGroup::description("drained", "g0"));
    drained.send_drain();
    drained.die();
    FakeGroup killed(server.group_port());
    killed.join(FakeGroup::description("killed", "g1"));
    killed.die();
    while (lines.count("group 'drained' (id g0)") + lines.count("group 'killed' (id g1)") < 4) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(lines.count("info: group 'drained' (id g0) from 127.0.0.1"), 2);
  EXPECT_EQ(lines.count(" left while draining: "), 1);
  EXPECT_EQ(lines.count("warning: group 'killed' (id g1) from 127.0.0.1"), 1);
}

TEST(ServerGroupPort, ACrowdThatSaysNothingKeepsNoGroupOut) {
  RunningServer server(with_groups({.strangers = 8, .strangers_of_address = 4}));
  std::vector<std::unique_ptr<FakeGroup>> crowd;
  for (int i = 0; i < 50; ++i) crowd.push_back(std::make_unique<FakeGroup>(server.group_port()));
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  for (int i = 0; i < 50; ++i) crowd.push_back(std::make_unique<FakeGroup>(server.group_port()));
  // The first has gone, and the group stays.
  EXPECT_TRUE(crowd.front()->closed_by_peer());
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", kPrompt);
  group.serve(group.receive_request());
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(ServerGroupPort, ACrowdCausesOneLine) {
  const LogLines log;
  RunningServer server(with_groups({.strangers = 4, .strangers_of_address = 4}));
  std::vector<std::unique_ptr<FakeGroup>> crowd;
  for (int i = 0; i < 50; ++i) crowd.push_back(std::make_unique<FakeGroup>(server.group_port()));
  for (int i = 0; i < 46; ++i) EXPECT_TRUE(crowd[static_cast<size_t>(i)]->closed_by_peer());
  EXPECT_EQ(log.count("group connection from"), 1);
}

TEST(ServerGroupPort, GroupsBeyondTheLimitAreToldToTryAgain) {
  RunningServer server(with_groups({.groups = 1}));
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  FakeGroup second(server.group_port());
  protocol::Envelope hello;
  *hello.mutable_register_() = FakeGroup::description("group-1", "g1");
  second.send(hello);
  const auto refusal = second.receive().register_reply();
  EXPECT_EQ(refusal.error().message(), "1 groups are connected, the limit");
  EXPECT_TRUE(second.closed_by_peer());
}

// As after the coordinator was stopped: the kernel has accepted connections of a group that has
// meanwhile given up waiting for an answer, time after time.
TEST(ServerGroupPort, AGroupThatHasLeftIsNotLetInAndNotCountedAsLost) {
  auto server = *Server::create(patient_options());
  protocol::Envelope hello;
  *hello.mutable_register_() = FakeGroup::description("group-0", "g0");
  for (int i = 0; i < 6; ++i) {
    FakeGroup stale(server->group_port());
    stale.send(hello);
    stale.die();
  }
  RawHttp client(server->http_port());
  client.send_request("GET", "/v1/models");
  std::thread thread([&server] { server->run(/*handle_signals=*/false); });
  EXPECT_EQ(client.read_reply().json().at("data").as_array().size(), 0u);
  FakeGroup group(server->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  client.send_request("GET", "/metrics");
  const std::string text = client.read_reply().body;
  EXPECT_NE(text.find("millrace_groups_lost_total 0"), std::string::npos);
  group.die();
  server->shut_down();
  server->shut_down();
  thread.join();
}

// A process has 100 lines for refusals at once, and one every 100 ms. Tests before this one may have used them up.
TEST(ServerLog, RequestsThatAreRefusedAtTheDoorCauseAFewLines) {
  const LogLines log;
  RunningServer server;
  const auto lines = [&log] { return log.count("refused, too_large"); };
  const auto began = std::chrono::steady_clock::now();
  for (int sent = 0; sent < 400 || lines() == 0; ++sent) {
    ASSERT_LT(sent, 100000);
    EXPECT_EQ(
        http_call(server.http_port(), "POST", "/v1/prefill/r/lease/renew", std::string(5000, ' '))
            .status,
        413);
  }
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LE(lines(), 101 + took / std::chrono::milliseconds(100));
}

TEST(ServerSignals, AHangUpEndsNothing) {
  RunningServer server(patient_options(), /*handle_signals=*/true);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);  // it runs
  ::raise(SIGHUP);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
  EXPECT_FALSE(server.ended_within(std::chrono::seconds(0)));
}

TEST(ServerKeepAlive, IdleConnectionsOutliveThePoolsOfRouters) {
  EXPECT_GT(ServerOptions().http.idle, std::chrono::seconds(90));
}

TEST(ServerKeepAlive, WhileItDrainsEveryAnswerEndsItsConnection) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", kPrompt);
  const auto request = group.receive_request();
  RawHttp bystander(server.http_port());
  bystander.send_request("GET", "/version");
  EXPECT_FALSE(bystander.read_reply().headers.contains("connection"));
  server.shut_down();
  bystander.send_request("GET", "/version");
  const RawReply reply = bystander.read_reply();
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(bystander.closed_by_peer());
  group.serve(request);
  EXPECT_EQ(client.read_reply().headers.at("connection"), "close");
}

}  // namespace
}  // namespace millrace::coordinator
