// SPDX-License-Identifier: Apache-2.0
// Bad input and failures, over sockets, as a client and a group see them.
#include <boost/json.hpp>
#include <csignal>

#include "common/errc_wire.h"
#include "coordinator/server/server.h"
#include "protocol/codec.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

std::string prompt(const std::string& id, const std::string& more = "") {
  return fmt::format(R"({{"model":"tiny","request_id":"{}","prompt_token_ids":[1,2,3]{}}})", id,
                     more);
}

// Expects this status line, and the same status and this type in the body.
void expect_error(const RawReply& reply, int status, const std::string& type) {
  EXPECT_EQ(reply.status, status);
  const auto body = reply.json().at("error");
  EXPECT_EQ(body.at("code").as_int64(), status);
  EXPECT_EQ(body.at("type").as_string(), type);
}

class ServerTrouble : public ::testing::Test {
 protected:
  void start(const ServerOptions& options = patient_options()) {
    server_ = std::make_unique<RunningServer>(options);
  }
  std::unique_ptr<FakeGroup> join(const std::string& id = "g0", const FakeModel& model = {}) {
    auto group = std::make_unique<FakeGroup>(server_->group_port());
    group->join(FakeGroup::description("group-0", id, model));
    return group;
  }
  RawReply post(const std::string& body, const std::string& headers = {}) {
    return http_call(server_->http_port(), "POST", "/v1/prefill", body, headers);
  }
  RawReply get(const std::string& target) { return http_call(server_->http_port(), "GET", target); }
  std::unique_ptr<RawHttp> begin(const std::string& body) {
    auto client = std::make_unique<RawHttp>(server_->http_port());
    client->send_request("POST", "/v1/prefill", body);
    return client;
  }

  std::unique_ptr<RunningServer> server_;
};

TEST_F(ServerTrouble, NoGroupGives503WithRetryAfter) {
  start();
  const RawReply reply = post(prompt("r"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.count("retry-after"), 1u);
  EXPECT_TRUE(reply.json().at("error").at("retriable").as_bool());
  EXPECT_EQ(get("/ready").status, 503);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(ServerTrouble, BadRequestsAreRefusedByName) {
  start();
  const auto group = join();
  const RawReply unknown = post(prompt("r", R"(,"color":1)"));
  EXPECT_EQ(unknown.status, 400);
  EXPECT_EQ(unknown.error_param(), "color");
  EXPECT_EQ(post("{\"model\":").status, 400);
  EXPECT_EQ(post(R"({"model":"tiny","prompt_token_ids":[]})").status, 400);
  const RawReply range = post(R"({"model":"tiny","prompt_token_ids":[1,100]})");
  EXPECT_EQ(range.status, 400);
  EXPECT_NE(range.error_message().find("prompt_token_ids[1] is 100"), std::string::npos);
  const RawReply model = post(R"({"model":"huge","prompt_token_ids":[1]})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(model.error_param(), "model");
}

TEST_F(ServerTrouble, ABadHeadPlanIsRefusedWhileTheGroupIsBusy) {
  start();
  const auto group = join();
  const auto running = begin(prompt("running"));
  EXPECT_EQ(group->receive_request().request_id(), "running");
  const RawReply refused = post(prompt("r", R"(,"head_plan":"dens")"));
  expect_error(refused, 400, "invalid_argument");
  EXPECT_EQ(refused.error_param(), "head_plan");
  EXPECT_EQ(get("/v1/prefill/r").status, 404);
}

TEST_F(ServerTrouble, APromptLongerThanTheModelTakesGives413) {
  start();
  FakeModel model;
  model.max_prompt_tokens = 2;
  const auto group = join("g0", model);
  const RawReply reply = post(prompt("r"));
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.error_message().find("3 tokens"), std::string::npos);
}

TEST_F(ServerTrouble, ABodyOverTheLimitIsRefusedBeforeItIsRead) {
  ServerOptions options = patient_options();
  options.http.max_body_bytes = 1000;
  start(options);
  RawHttp announced(server_->http_port());
  announced.send("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
  expect_error(announced.read_reply(), 413, "too_large");
  RawHttp chunked(server_->http_port());
  chunked.send("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
               std::string(1001, 'x') + "\r\n0\r\n\r\n");
  expect_error(chunked.read_reply(), 413, "too_large");
}

TEST_F(ServerTrouble, OnlyAPrefillMayHaveALargeBody) {
  start();
  const auto group = join();
  const auto client = begin(prompt("r"));
  group->serve(group->receive_request());
  EXPECT_EQ(client->read_reply().status, 200);
  const auto limit = static_cast<size_t>(HttpLimits().max_small_body_bytes);
  const std::string release = R"({"lease_id":"lease-1"})";
  for (const char* line :
       {"POST /v1/prefill/r/lease:release", "POST /v1/prefill/r/lease:renew", "GET /health",
        "DELETE /v1/prefill/r", "PUT /v1/prefill", "POST /nothing"}) {
    RawHttp announced(server_->http_port());
    announced.send(
        fmt::format("{} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", line, limit + 1));
    const RawReply reply = announced.read_reply();
    expect_error(reply, 413, "too_large");
    EXPECT_NE(reply.error_message().find(std::to_string(limit)), std::string::npos);
    RawHttp chunked(server_->http_port());
    chunked.send(
        fmt::format("{} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}"
                    "\r\n0\r\n\r\n",
                    line, limit + 1, std::string(limit + 1, ' ')));
    expect_error(chunked.read_reply(), 413, "too_large");
  }
  const RawReply released = http_call(server_->http_port(), "POST", "/v1/prefill/r/lease:release",
                                      release + std::string(limit - release.size(), ' '));
  EXPECT_EQ(released.status, 200);
}

TEST_F(ServerTrouble, ABodyThatIsTooLargeIsRefusedInsteadOfAskedFor) {
  start();
  RawHttp client(server_->http_port());
  client.send(
      "POST /v1/prefill/r/lease:release HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 413);
}

TEST_F(ServerTrouble, AHeaderOverTheLimitGives431AndNonsenseGives400) {
  start();
  RawHttp large(server_->http_port());
  large.send("GET /health HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n");
  expect_error(large.read_reply(), 431, "too_large");
  RawHttp nonsense(server_->http_port());
  nonsense.send("what is this\r\n\r\n");
  expect_error(nonsense.read_reply(), 400, "invalid_argument");
  EXPECT_TRUE(nonsense.closed_by_peer());
}

TEST_F(ServerTrouble, AConnectionThatFallsSilentIsClosed) {
  ServerOptions options = patient_options();
  options.http.progress = std::chrono::milliseconds(50);
  options.http.idle = std::chrono::milliseconds(50);
  start(options);
  RawHttp slow_body(server_->http_port());
  slow_body.send("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(slow_body.closed_by_peer());
  RawHttp silent(server_->http_port());
  EXPECT_TRUE(silent.closed_by_peer());
}

TEST_F(ServerTrouble, UnknownPathsAndWrongMethods) {
  start();
  const RawReply nothing = get("/noth\"ing?x=1");
  expect_error(nothing, 404, "not_found");
  EXPECT_EQ(nothing.error_message(),
            "GET \"/noth\\\"ing\": no such path; docs/api.md lists all paths");
  const RawReply wrong = get("/v1/prefill");
  expect_error(wrong, 405, "invalid_argument");
  EXPECT_EQ(wrong.error_message(), "\"/v1/prefill\" does not accept GET; it accepts POST");
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(get("/v1/prefill/nobody").status, 404);
  EXPECT_EQ(http_call(server_->http_port(), "DELETE", "/v1/prefill/nobody").status, 404);
}

TEST_F(ServerTrouble, AHeadIsAnsweredWithoutABody) {
  start();
  RawHttp client(server_->http_port());
  for (const char* target : {"/health", "/ready", "/health"}) {
    client.send_request("HEAD", target);
    const RawReply head = client.read_head();
    EXPECT_EQ(head.status, target == std::string("/ready") ? 503 : 200) << target;
    EXPECT_NE(head.headers.at("content-length"), "0") << target;
  }
}

TEST_F(ServerTrouble, FieldsBesideAJsonBodyAreRefusedAndNotPassedOver) {
  start();
  const auto group = join();
  const RawReply prefill =
      http_call(server_->http_port(), "POST", "/v1/prefill?stream=true", prompt("r"));
  expect_error(prefill, 400, "invalid_argument");
  EXPECT_EQ(prefill.error_param(), "stream");
  const RawReply release =
      http_call(server_->http_port(), "POST", "/v1/prefill/r/lease:release?lease_id=l", "{}");
  expect_error(release, 400, "invalid_argument");
  EXPECT_EQ(release.error_param(), "lease_id");
}

TEST_F(ServerTrouble, TheMediaTypeIsReadWithoutCaseAndParameters) {
  start();
  const auto group = join();
  RawHttp client(server_->http_port());
  client.send_request("POST", "/v1/prefill?model=tiny&request_id=r", std::string("\1\0\0\0", 4),
                      "Content-Type: Application/Octet-Stream; x=y\r\n");
  group->serve(group->receive_request());
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(ServerTrouble, AFullQueueGives429WithRetryAfter) {
  ServerOptions options = patient_options();
  options.scheduler.max_queued_requests = 1;
  start(options);
  const auto group = join();
  const auto running = begin(prompt("running"));
  EXPECT_EQ(group->receive_request().request_id(), "running");
  const auto waiting = begin(prompt("waiting", R"(,"stream":true,"cache":"off")"));
  EXPECT_EQ(waiting->read_head().status, 200);
  // With the cache, they would share one prefill.
  const RawReply refused = post(prompt("refused", R"(,"cache":"off")"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
}

TEST_F(ServerTrouble, ADeadlineThatPassesGives504AndCancelsOnTheGroup) {
  start();
  const auto group = join();
  const auto client = begin(prompt("r", R"(,"deadline_ms":50)"));
  EXPECT_EQ(group->receive_request().request_id(), "r");
  EXPECT_EQ(client->read_reply().status, 504);
  EXPECT_EQ(group->receive().cancel().request_id(), "r");
}

TEST_F(ServerTrouble, AnErrorOfTheGroupReachesTheClient) {
  start();
  const auto group = join();
  const auto client = begin(prompt("r", R"(,"head_plan":"dense")"));
  const auto request = group->receive_request();
  EXPECT_EQ(request.options().head_plan(), "dense");
  group->send_failed("r", errc_to_wire(Errc::kUnsupported), "head_dim 96 is not for it");
  const RawReply reply = client->read_reply();
  EXPECT_EQ(reply.status, 501);
  EXPECT_EQ(reply.error_message(), "head_dim 96 is not for it");
}

TEST_F(ServerTrouble, AClientThatHangsUpCancels) {
  start();
  const auto group = join();
  auto client = begin(prompt("r"));
  EXPECT_EQ(group->receive_request().request_id(), "r");
  client->hang_up();
  EXPECT_EQ(group->receive().cancel().request_id(), "r");
}

TEST_F(ServerTrouble, AStreamingClientThatHangsUpCancels) {
  start();
  const auto group = join();
  auto client = begin(prompt("r", R"(,"stream":true)"));
  EXPECT_EQ(group->receive_request().request_id(), "r");
  group->send_started("r");
  EXPECT_EQ(client->read_head().status, 200);
  client->read_event();
  client->hang_up();
  EXPECT_EQ(group->receive().cancel().request_id(), "r");
}

TEST_F(ServerTrouble, DeleteCancelsAndTheWaitingClientHears) {
  start();
  const auto group = join();
  const auto client = begin(prompt("r"));
  EXPECT_EQ(group->receive_request().request_id(), "r");
  const RawReply cancelled = http_call(server_->http_port(), "DELETE", "/v1/prefill/r");
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_EQ(cancelled.json().at("status").as_string(), "failed");
  EXPECT_EQ(client->read_reply().status, 499);
  EXPECT_EQ(group->receive().cancel().request_id(), "r");
}

TEST_F(ServerTrouble, AGroupThatDiesGivesARetriableErrorAndItsSuccessorServes) {
  start();
  auto group = join("g0");
  const auto kept = begin(prompt("kept"));
  group->serve(group->receive_request());
  EXPECT_EQ(kept->read_reply().status, 200);
  const auto client = begin(prompt("r"));
  EXPECT_EQ(group->receive_request().request_id(), "r");
  group->die();
  const RawReply reply = client->read_reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_TRUE(reply.json().at("error").at("retriable").as_bool());
  EXPECT_NE(reply.error_message().find("group 'group-0' (id g0) is lost"), std::string::npos);
  EXPECT_EQ(get("/v1/prefill/kept").json().at("lease").at("state").as_string(), "lost");

  const auto successor = join("g1");
  const auto again = begin(prompt("r"));
  successor->serve(successor->receive_request());
  EXPECT_EQ(again->read_reply().status, 200);
}

TEST_F(ServerTrouble, AStreamEndsWithTheErrorWhenTheGroupDies) {
  start();
  auto group = join();
  const auto client = begin(prompt("r", R"(,"stream":true)"));
  EXPECT_EQ(client->read_head().status, 200);
  EXPECT_TRUE(client->read_event().starts_with("event: queued"));
  group->receive_request();
  group->die();
  const std::string event = client->read_event();
  EXPECT_TRUE(event.starts_with("event: error\n")) << event;
  EXPECT_NE(event.find("peer_lost"), std::string::npos) << event;
}

TEST_F(ServerTrouble, ASilentGroupIsLost) {
  ServerOptions options = patient_options();
  options.scheduler.heartbeat_interval = std::chrono::milliseconds(20);
  options.scheduler.group_patience = std::chrono::milliseconds(100);
  start(options);
  FakeGroup group(server_->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  EXPECT_TRUE(group.closed_by_peer());
}

TEST_F(ServerTrouble, AGroupThatStopsReadingAndSendingIsCutOff) {
  ServerOptions options = patient_options();
  options.http.group_handshake = std::chrono::seconds(1);  // of which joining may need some
  start(options);
  FakeModel model;
  model.max_prompt_tokens = 16'000'000;
  const auto group = join("g0", model);
  RawHttp client(server_->http_port());
  // More than the sockets' buffers hold, so that the server is in the middle of it.
  client.send_request("POST", "/v1/prefill?model=tiny", std::string(48 << 20, '\0'),
                      "Content-Type: application/octet-stream\r\n");
  EXPECT_TRUE(group->has_come());
  group->stop_sending();
  EXPECT_EQ(client.read_reply().status, 503);
  EXPECT_TRUE(group->reset_by_peer());
}

TEST_F(ServerTrouble, AGroupThatTalksNonsenseIsRefused) {
  ServerOptions options = patient_options();
  options.http.group_handshake = std::chrono::milliseconds(50);
  start(options);
  FakeGroup silent(server_->group_port());
  EXPECT_TRUE(silent.closed_by_peer());
  FakeGroup lying(server_->group_port());
  lying.send_bytes(std::string(4, '\xff'));
  EXPECT_TRUE(lying.closed_by_peer());
  FakeGroup garbage(server_->group_port());
  garbage.send_bytes(std::string("\4\0\0\0\xff\xff\xff\xff", 8));
  EXPECT_TRUE(garbage.closed_by_peer());
}

TEST_F(ServerTrouble, AGroupThatTalksNonsenseOnceItIsInIsDropped) {
  start();
  auto registered = join();
  registered->send_bytes(std::string("\4\0\0\0\xff\xff\xff\xff", 8));
  EXPECT_TRUE(registered->closed_by_peer());
}

TEST_F(ServerTrouble, AGroupAtTheHttpPortGetsAnAnswerOfHttp) {
  start();
  protocol::Envelope envelope;
  *envelope.mutable_register_() = FakeGroup::description("group-0", "g0");
  RawHttp group(server_->http_port());
  group.send(*protocol::encode_frame(envelope));
  EXPECT_EQ(group.read_reply().status, 400);
}

TEST_F(ServerTrouble, AGroupOfAnotherVersionIsToldSo) {
  start();
  FakeGroup group(server_->group_port());
  protocol::Envelope envelope;
  *envelope.mutable_register_() = FakeGroup::description("group-0", "g0");
  envelope.mutable_register_()->set_protocol_version(99);
  group.send(envelope);
  const auto reply = group.receive();
  EXPECT_EQ(reply.register_reply().error().code(), errc_to_wire(Errc::kUnsupported));
  EXPECT_TRUE(group.closed_by_peer());
}

TEST_F(ServerTrouble, AFourMegabyteBinaryPromptArrivesWhole) {
  start();
  FakeModel model;
  model.max_prompt_tokens = 2'000'000;
  const auto group = join("g0", model);
  std::string body(4 << 20, '\0');
  for (size_t i = 0; i < body.size(); i += 4) body[i] = static_cast<char>(i / 4 % 100);
  RawHttp client(server_->http_port());
  client.send_request("POST", "/v1/prefill?model=tiny&request_id=big", body,
                      "Content-Type: application/octet-stream\r\nExpect: 100-continue\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  const auto request = group->receive_request();
  EXPECT_TRUE(request.prompt_token_ids() == body);
  group->serve(request);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(ServerTrouble, LeasesAreRenewedAndReleasedOverHttp) {
  start();
  const auto group = join();
  const auto client = begin(prompt("r"));
  group->serve(group->receive_request());
  EXPECT_EQ(client->read_reply().status, 200);
  RawHttp renewal(server_->http_port());
  renewal.send_request("POST", "/v1/prefill/r/lease:renew",
                       R"({"lease_id":"lease-1","lease_ms":90000})");
  EXPECT_EQ(group->receive().lease_renew().lease_ms(), 90000u);
  group->send_lease_reply("r", 90000);
  const RawReply renewed = renewal.read_reply();
  EXPECT_EQ(renewed.status, 200);
  EXPECT_GT(renewed.json().at("lease").at("expires_in_ms").as_int64(), 60000);
  const auto call = [&](const char* verb, const char* body) {
    return http_call(server_->http_port(), "POST", fmt::format("/v1/prefill/r/lease:{}", verb),
                     body)
        .status;
  };
  EXPECT_EQ(call("release", R"({"lease_id":"foreign"})"), 404);
  EXPECT_EQ(call("renew", R"({"lease_id":"lease-1"})"), 400);
  EXPECT_EQ(call("release", "[1"), 400);
  EXPECT_EQ(call("release", R"({"lease_id":"lease-1"})"), 200);
  EXPECT_EQ(group->receive().lease_release().lease_id(), "lease-1");
  EXPECT_EQ(call("renew", R"({"lease_id":"lease-1","lease_ms":1})"), 404);
}

TEST_F(ServerTrouble, ARenewalThatTheGroupDoesNotAnswerIsToBeAskedForAgain) {
  ServerOptions options = patient_options();
  options.http.lease_answer = std::chrono::milliseconds(50);
  start(options);
  const auto group = join();
  const auto client = begin(prompt("r"));
  group->serve(group->receive_request());
  EXPECT_EQ(client->read_reply().status, 200);
  const auto renew = [&] {
    return http_call(server_->http_port(), "POST", "/v1/prefill/r/lease:renew",
                     R"({"lease_id":"lease-1","lease_ms":1000})");
  };
  for (int i = 0; i < 2; ++i) expect_error(renew(), 503, "unavailable");
}

TEST_F(ServerTrouble, ShutDownFinishesWhatRunsAndRefusesWhatComes) {
  start();
  const auto group = join();
  RawHttp idle(server_->http_port());
  const auto client = begin(prompt("r"));
  const auto request = group->receive_request();
  server_->shut_down();
  // The shut-down passes through the server's own queue; a request that is answered shows that it
  // has arrived.
  RawReply ready = get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(post(prompt("late")).status, 503);
  group->serve(request);
  EXPECT_EQ(client->read_reply().status, 200);
  EXPECT_TRUE(server_->ended_within(std::chrono::seconds(10)));
}

TEST_F(ServerTrouble, SigtermEndsAnIdleServerAtOnceAndABusyOneAfterItsRequest) {
  for (const bool busy : {false, true}) {
    server_ = std::make_unique<RunningServer>(patient_options(), /*handle_signals=*/true);
    const auto group = join();
    std::unique_ptr<RawHttp> client;
    if (busy) {
      client = begin(prompt("r"));
      group->receive_request();
    }
    ::raise(SIGTERM);  // the group was let in, so the server runs and has its handler
    if (busy) {
      group->send_done("r");
      EXPECT_EQ(client->read_reply().status, 200);
    }
    EXPECT_TRUE(server_->ended_within(std::chrono::seconds(10)));
  }
}

TEST_F(ServerTrouble, ShutDownEndsWhatDoesNotFinishInTime) {
  ServerOptions options = patient_options();
  options.shutdown_timeout = std::chrono::milliseconds(50);
  start(options);
  const auto group = join();
  const auto client = begin(prompt("r"));
  group->receive_request();
  server_->shut_down();
  EXPECT_EQ(client->read_reply().status, 503);
  EXPECT_TRUE(server_->ended_within(std::chrono::seconds(10)));
}

}  // namespace
}  // namespace millrace::coordinator
