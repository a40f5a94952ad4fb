// SPDX-License-Identifier: Apache-2.0
// What strangers send: endless framing, bodies that trickle in, and silent connections.
#include <sys/resource.h>

#include <boost/json.hpp>
#include <future>
#include <limits>

#include "coordinator/server/server.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

constexpr const char* kChunked =
    "POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

// The server must refuse a request with such a body, and keep running.
void expect_refused_framing(const std::string& body) {
  RunningServer server;
  RawHttp client(server.http_port());
  client.send(kChunked);
  (void)client.try_send(body);  // which may be cut off in the middle
  const RawReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.error_message().find("chunk"), std::string::npos) << reply.body;
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
}

// How many connections are possible with both ends in this process.
int connections_possible() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 100'000)) / 2 - 100;
}

TEST(ServerStrangers, ATrailerOverTheHeadersLimitGives400) {
  expect_refused_framing("0\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n");
}

TEST(ServerStrangers, ATrailerWithoutEndGives400) {
  expect_refused_framing("0\r\nX: " + std::string(1 << 20, 'a'));
}

TEST(ServerStrangers, TrailersOverTheHeadersLimitTogetherGive400) {
  std::string trailers = "0\r\n";
  for (int i = 0; i < 50; ++i) trailers += "X: " + std::string(1000, 'a') + "\r\n";
  expect_refused_framing(trailers + "\r\n");
}

TEST(ServerStrangers, AChunkExtensionWithoutEndGives400) {
  expect_refused_framing("1;a=" + std::string(1 << 20, 'a'));
}

TEST(ServerStrangers, ChunkExtensionsOverTheHeadersLimitTogetherGive400) {
  std::string chunks;
  for (int i = 0; i < 50; ++i) chunks += "1;a=" + std::string(1000, 'b') + "\r\nx\r\n";
  expect_refused_framing(chunks + "0\r\n\r\n");
}

TEST(ServerStrangers, AChunkSizeOfZerosWithoutEndGives400) {
  expect_refused_framing(std::string(1 << 20, '0'));
}

TEST(ServerStrangers, ChunkSizesWithManyZerosCountAsWell) {
  std::string chunks;
  for (int i = 0; i < 50; ++i) chunks += std::string(1000, '0') + "1\r\nx\r\n";
  expect_refused_framing(chunks + "0\r\n\r\n");
}

TEST(ServerStrangers, ATransferEncodingThatIsNotChunkedIsRefused) {
  for (const char* headers :
       {"Transfer-Encoding: nonsense\r\n", "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 2\r\n"}) {
    RunningServer server;
    RawHttp client(server.http_port());
    client.send(fmt::format("POST /v1/prefill HTTP/1.1\r\nHost: x\r\n{}\r\n{{}}", headers));
    const RawReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 400) << headers;
    EXPECT_NE(reply.error_message().find("ransfer"), std::string::npos) << reply.body;
    EXPECT_TRUE(client.closed_by_peer());
  }
}

TEST(ServerStrangers, ShortExtensionsAndTrailersAreRead) {
  RunningServer server;
  RawHttp client(server.http_port());
  std::string body;
  for (int i = 0; i < 1000; ++i) body += "0001\r\nx\r\n";  // framing that a body needs is free
  for (int i = 0; i < 2; ++i) {
    client.send(kChunked + body + "3;a=b\r\nxyz\r\n0;last\r\nX-Sum: 1\r\n\r\n");
    EXPECT_EQ(client.read_reply().status, 404);
  }
}

TEST(ServerStrangers, ProbesAreAnsweredBesideThousandsOfConnectionsWithoutAWord) {
  const int num_idle = std::min(3000, connections_possible());
  RunningServer server;
  std::vector<std::unique_ptr<RawHttp>> idle;
  for (int i = 0; i < num_idle; ++i) idle.push_back(std::make_unique<RawHttp>(server.http_port()));
  for (const char* target : {"/health", "/metrics", "/health"}) {
    EXPECT_EQ(http_call(server.http_port(), "GET", target).status, 200) << target;
  }
}

TEST(ServerStrangers, TheAdminPortAnswersProbesOnly) {
  ServerOptions options = patient_options();
  options.admin_port = 0;
  RunningServer server(options);
  for (const char* target : {"/health", "/metrics", "/version"}) {
    EXPECT_EQ(http_call(server.admin_port(), "GET", target).status, 200) << target;
  }
  EXPECT_EQ(http_call(server.admin_port(), "GET", "/ready").status, 503);
  const RawReply refused = http_call(server.admin_port(), "POST", "/v1/prefill", "{}");
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.error_message().rfind("this port serves only /health", 0), 0u);
}

TEST(ServerStrangers, OneClientsConnectionsLeaveRoomForOthers) {
  ServerOptions options = patient_options();
  options.http.max_connections = 3;
  options.http.max_connections_per_client = 2;
  RunningServer server(options);
  RawHttp first(server.http_port());
  first.send_request("GET", "/version");
  ASSERT_EQ(first.read_reply().status, 200);
  RawHttp second(server.http_port());
  second.send_request("GET", "/version");
  ASSERT_EQ(second.read_reply().status, 200);
  const RawReply refused = http_call(server.http_port(), "GET", "/version");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.error_message().rfind("2 connections of 127.0.0.1 are open", 0), 0u);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
}

// Bytes come, but fewer than 1 GiB a second on average.
TEST(ServerStrangers, ABodyThatTricklesInIsCutOffAndItsShareOfThePoolIsFree) {
  ServerOptions options = patient_options();
  options.http.progress = std::chrono::milliseconds(50);
  options.http.min_body_rate = 1 << 30;
  options.http.max_body_bytes = options.http.body_pool_bytes = 1'000'000;
  RunningServer server(options);
  RawHttp slow(server.http_port());
  slow.send("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  while (slow.try_send(" ")) {  // as fast as it can, a byte a packet
  }
  EXPECT_EQ(http_call(server.http_port(), "POST", "/v1/prefill", std::string(900'000, ' ')).status,
            400);
}

TEST(ServerStrangers, ABodyThatTakesTooLongAsAWholeIsCutOff) {
  ServerOptions options = patient_options();
  options.http.body_time = std::chrono::milliseconds(50);
  options.http.min_body_rate = 0;
  RunningServer server(options);
  RawHttp slow(server.http_port());
  slow.send("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n");
  while (slow.try_send(" ")) {
  }
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
}

// Throws what a library may throw.
void out_of_memory() {
  throw std::bad_alloc();
}

TEST(ServerExceptions, OneOfAConnectionEndsTheConnectionAndNothingElse) {
  ServerOptions options = patient_options();
  options.faults.answering = [](std::string_view target) {
    if (target == "/version") out_of_memory();
  };
  // So that a connection that stayed open would be noticed.
  options.http.max_connections = options.http.max_connections_per_client = 2;
  RunningServer server(options);
  RawHttp bystander(server.http_port());
  bystander.send_request("GET", "/v1/models");
  EXPECT_EQ(bystander.read_reply().status, 200);
  for (int i = 0; i < 3; ++i) {
    RawHttp victim(server.http_port());
    victim.send_request("GET", "/version");
    EXPECT_TRUE(victim.closed_by_peer());
  }
  bystander.send_request("GET", "/v1/models");
  EXPECT_EQ(bystander.read_reply().status, 200);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/v1/models").status, 200);
}

TEST(ServerExceptions, OneOfAGroupsMessageCostsTheGroupItsConnection) {
  ServerOptions options = patient_options();
  bool thrown = false;
  options.faults.group_message = [&thrown] {
    if (!std::exchange(thrown, true)) out_of_memory();
  };
  RunningServer server(options);
  FakeGroup victim(server.group_port());
  victim.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", R"({"model":"tiny","prompt_token_ids":[1]})");
  const std::string id = victim.receive_request().request_id();
  victim.send_started(id);
  const RawReply lost = client.read_reply();
  EXPECT_EQ(lost.status, 503);
  EXPECT_NE(lost.error_message().find("exception: std::bad_alloc"), std::string::npos);
  EXPECT_TRUE(victim.closed_by_peer());
  FakeGroup successor(server.group_port());
  successor.join(FakeGroup::description("group-0", "g1"));
  client.send_request("POST", "/v1/prefill", R"({"model":"tiny","prompt_token_ids":[1]})");
  successor.serve(successor.receive_request());
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(ServerExceptions, OneOfAListenerCostsThatConnectionOnly) {
  ServerOptions options = patient_options();
  int connections = 0;
  options.faults.accepting = [&connections] {
    if (++connections % 2 == 1) out_of_memory();
  };
  RunningServer server(options);
  RawHttp victim(server.http_port());
  EXPECT_TRUE(victim.closed_by_peer());
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
  FakeGroup lost(server.group_port());
  EXPECT_TRUE(lost.closed_by_peer());
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
}

TEST(ServerExceptions, OneOfATickIsNotTheLastTick) {
  ServerOptions options = patient_options();
  int ticks = 0;
  options.faults.tick = [&ticks] {
    if (++ticks % 2 == 1) out_of_memory();
  };
  RunningServer server(options);
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  EXPECT_EQ(http_call(server.http_port(), "POST", "/v1/prefill",
                      R"({"model":"tiny","prompt_token_ids":[1],"deadline_ms":1})")
                .status,
            504);
}

// The done message of request `id`, with this many token ranges in its manifest.
protocol::Envelope done(const std::string& id, int num_ranges = 0) {
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_prefill_done();
  message.set_request_id(id);
  message.mutable_manifest()->set_lease_id("lease-1");
  message.mutable_manifest()->set_lease_ms(60000);
  if (num_ranges > 0) message.mutable_manifest()->add_shards();
  for (int i = 0; i < num_ranges; ++i) {
    message.mutable_manifest()->mutable_shards(0)->add_token_ranges()->set_end(1u << 20);
  }
  return envelope;
}

constexpr const char* kPrompt = R"({"model":"tiny","request_id":"r","prompt_token_ids":[1]})";

TEST(ServerAnswers, HealthIsAnsweredWhileAManifestIsWritten) {
  std::promise<void> go_on;
  ServerOptions options = patient_options();
  options.faults.writing = [gate = go_on.get_future().share()] { gate.wait(); };
  RunningServer server(options);
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", kPrompt);
  group.send(done(group.receive_request().request_id(), 50'000));  // above what is read inline
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
  go_on.set_value();
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(ServerAnswers, AnswersThatFindNoRoomBesideOthersAreRefused) {
  ServerOptions options = patient_options();
  options.http.reply_pool_bytes = 200'000;
  RunningServer server(options);
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", kPrompt);
  group.send(done(group.receive_request().request_id(), 10'000));
  const RawReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.error_message().rfind("answer: no room", 0), 0u) << reply.error_message();
}

TEST(ServerAnswers, AStreamWhoseResultFindsNoRoomEndsWithAnError) {
  ServerOptions options = patient_options();
  options.http.reply_pool_bytes = 200'000;
  RunningServer server(options);
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","prompt_token_ids":[1],"stream":true})");
  const std::string id = group.receive_request().request_id();
  EXPECT_EQ(client.read_head().status, 200);
  EXPECT_TRUE(client.read_event().starts_with("event: queued"));
  group.send(done(id, 10'000));
  const std::string event = client.read_event();
  EXPECT_TRUE(event.starts_with("event: error")) << event.substr(0, 100);
  EXPECT_NE(event.find("answer: no room"), std::string::npos);
}

TEST(ServerAnswers, WhatIsNoNumberIsNull) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", kPrompt);
  auto envelope = done(group.receive_request().request_id());
  auto& manifest = *envelope.mutable_prefill_done()->mutable_manifest();
  manifest.set_density(std::numeric_limits<double>::quiet_NaN());
  manifest.set_recall(std::numeric_limits<double>::infinity());
  manifest.set_recall_p01(std::numeric_limits<double>::quiet_NaN());
  manifest.add_top_logprobs()->set_logprob(-std::numeric_limits<float>::infinity());
  auto& stage = *envelope.mutable_prefill_done()->add_stages();
  stage.set_stage("layers");
  stage.set_seconds(-std::numeric_limits<double>::infinity());
  group.send(envelope);
  const auto answer = client.read_reply().json();
  for (const auto* fields : {&answer, &answer.at("manifest")}) {
    EXPECT_TRUE(fields->at("density").is_null());
    EXPECT_TRUE(fields->at("recall").is_null());
    EXPECT_TRUE(fields->at("recall_p01").is_null());
  }
  EXPECT_TRUE(answer.at("stages").at("layers").is_null());
  const auto& token = answer.at("manifest").at("top_logprobs").at(0);
  EXPECT_TRUE(token.at("logprob").is_null());
  EXPECT_EQ(token.at("logit").to_number<double>(), 0);
}

TEST(ServerAnswers, ALayerWithoutADensityIsAnEventAllTheSame) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","prompt_token_ids":[1],"stream":true})");
  const std::string id = group.receive_request().request_id();
  EXPECT_EQ(client.read_head().status, 200);
  group.send_layer(id, 0, std::numeric_limits<double>::quiet_NaN());
  std::string event;
  while (!event.starts_with("event: layer")) event = client.read_event();
  const auto data = boost::json::parse(event.substr(event.find("data: ") + 6));
  EXPECT_TRUE(data.at("density").is_null());
}

class ServerHalfClosed : public ::testing::Test {
 protected:
  ServerHalfClosed() { group_.join(FakeGroup::description("group-0", "g0")); }
  static ServerOptions options() {
    ServerOptions out = patient_options();
    out.http.keep_alive = std::chrono::milliseconds(10);  // how often it looks who listens
    return out;
  }
  void ask(const std::string& more) {
    client_.send_request("POST", "/v1/prefill",
                         R"({"model":"tiny","request_id":"r","prompt_token_ids":[1])" + more + "}");
    client_.finish_sending();
    request_ = group_.receive_request();
  }

  RunningServer server_{options()};
  FakeGroup group_{server_.group_port()};
  RawHttp client_{server_.http_port()};
  protocol::PrefillRequest request_;
};

TEST_F(ServerHalfClosed, AClientThatOnlyListensIsServed) {
  ask("");
  // The server has answered, so it has seen that the client sends no more.
  EXPECT_EQ(client_.read_head().status, 100);
  group_.serve(request_);
  RawReply reply = client_.read_head();
  while (reply.status == 100) reply = client_.read_head();
  EXPECT_EQ(reply.status, 200);
}

TEST_F(ServerHalfClosed, AClientThatOnlyListensToAStreamIsServed) {
  ask(R"(,"stream":true)");
  EXPECT_EQ(client_.read_head().status, 200);
  std::string event = client_.read_event();
  while (!event.empty() && event.find(": ping") == std::string::npos) event = client_.read_event();
  group_.serve(request_);
  while (!event.empty() && !event.starts_with("event: done")) event = client_.read_event();
  EXPECT_FALSE(event.empty());
}

TEST_F(ServerHalfClosed, AClientThatOnlyListensAndThenLeavesCancels) {
  ask("");
  EXPECT_EQ(client_.read_head().status, 100);
  client_.hang_up();
  EXPECT_EQ(group_.receive().cancel().request_id(), "r");
}

}  // namespace
}  // namespace millrace::coordinator
