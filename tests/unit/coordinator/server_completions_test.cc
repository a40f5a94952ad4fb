// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions over sockets, with groups played by the test.
#include <boost/json.hpp>

#include "common/errc_wire.h"
#include "coordinator/server/server.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

constexpr const char* kBody = R"({"model":"tiny","prompt":[1,2,3],"max_tokens":1})";

class ServerCompletions : public ::testing::Test {
 protected:
  ServerCompletions() { group_.join(FakeGroup::description("group-0", "g0")); }

  std::unique_ptr<RawHttp> begin(const std::string& body, const std::string& headers = {}) {
    auto client = std::make_unique<RawHttp>(server_.http_port());
    client->send_request("POST", "/v1/completions", body, headers);
    return client;
  }
  RawReply post(const std::string& body, const std::string& target = "/v1/completions") {
    return http_call(server_.http_port(), "POST", target, body);
  }

  RunningServer server_;
  FakeGroup group_{server_.group_port()};
};

TEST_F(ServerCompletions, APromptIsAPrefillUnderTheRoutersId) {
  const auto client = begin(R"({"model":"tiny","prompt":[1,2,3],"max_tokens":1,"temperature":0.7,)"
                            R"("kv_transfer_params":{"do_remote_decode":true},)"
                            R"("millrace":{"head_plan":"dense","lease_ms":5000}})",
                            "X-Request-Id: router-1\r\n");
  const auto request = group_.receive_request();
  EXPECT_EQ(request.request_id(), "router-1");
  EXPECT_EQ(request.prompt_token_ids(), std::string("\1\0\0\0\2\0\0\0\3\0\0\0", 12));
  EXPECT_EQ(request.options().head_plan(), "dense");
  EXPECT_EQ(request.options().lease_ms(), 5000u);
  group_.serve(request);
  const RawReply reply = client->read_reply();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("x-request-id"), "router-1");
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  const auto body = reply.json();
  EXPECT_EQ(body.at("id").as_string(), "cmpl-router-1");
  EXPECT_EQ(body.at("choices").at(0).at("token_ids").at(0).as_int64(), 7);
  EXPECT_GT(body.at("created").as_int64(), 1'700'000'000);
  EXPECT_EQ(body.at("kv_transfer_params"),
            boost::json::parse(
                R"({"millrace":{"request_id":"router-1","lease_id":"lease-1","prompt_sha256":)"
                R"("4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d"}})"));
  // It is a request like any other.
  const RawReply state = http_call(server_.http_port(), "GET", "/v1/prefill/router-1");
  EXPECT_EQ(state.json().at("lease").at("state").as_string(), "active");
}

TEST_F(ServerCompletions, AStreamIsWholeEventsWhenThePrefillIsDone) {
  const auto client = begin(R"({"model":"tiny","prompt":[[1]],"stream":true})");
  group_.serve(group_.receive_request());
  const RawReply reply = client->read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_TRUE(reply.body.starts_with(R"(data: {"id":"cmpl-req-)")) << reply.body;
  EXPECT_TRUE(reply.body.ends_with("}\n\ndata: [DONE]\n\n")) << reply.body;
}

TEST_F(ServerCompletions, AFailureHasItsStatusInAStreamToo) {
  for (const char* stream : {"true", "false"}) {
    const auto client =
        begin(fmt::format(R"({{"model":"tiny","prompt":[1],"stream":{}}})", stream));
    const auto request = group_.receive_request();
    group_.send_failed(request.request_id(), errc_to_wire(Errc::kUnsupported), "head_dim 96");
    const RawReply reply = client->read_reply();
    EXPECT_EQ(reply.status, 501);
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    EXPECT_EQ(reply.error_message(), "head_dim 96");
  }
}

TEST_F(ServerCompletions, WhatIsWrongIsCalledAsTheClientCallsIt) {
  const auto param = [this](const std::string& body, int status) {
    const RawReply reply = post(body);
    EXPECT_EQ(reply.status, status) << reply.body;
    return reply.error_param();
  };
  EXPECT_EQ(param(R"({"model":"tiny","prompt":"Hello"})", 400), "prompt");
  EXPECT_EQ(param(R"({"model":"tiny","prompt":[1,100]})", 400), "prompt");
  EXPECT_EQ(post(R"({"model":"tiny","prompt":[1,100]})").error_message(),
            "prompt[1] is 100; model 'tiny' has a vocabulary of 100");
  std::string tokens = "1";
  for (int i = 0; i < 4096; ++i) tokens += ",1";
  EXPECT_EQ(param(R"({"model":"tiny","prompt":[)" + tokens + "]}", 413), "prompt");
  EXPECT_EQ(param(R"({"model":"huge","prompt":[1]})", 404), "model");
  EXPECT_EQ(param(R"({"model":"tiny","prompt":[1],"max_tokens":16})", 400), "max_tokens");
  const RawReply query = post(kBody, "/v1/completions?stream=true");
  EXPECT_EQ(query.status, 400);
  EXPECT_EQ(query.error_param(), "stream");
}

TEST_F(ServerCompletions, AChatNeedsATokenizer) {
  const RawReply reply = post(R"({"model":"tiny","messages":[{"role":"user","content":"a"}]})",
                              "/v1/chat/completions");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.error_param(), "messages");
  EXPECT_TRUE(reply.error_message().starts_with("'messages' is text, and this coordinator has no"))
      << reply.error_message();
}

TEST_F(ServerCompletions, AnIdOfABodyThatIsInUseForAnotherPromptIsRefused) {
  const auto first = begin(R"({"model":"tiny","prompt":[1],"request_id":"same"})");
  EXPECT_EQ(group_.receive_request().request_id(), "same");
  const char* body = R"({"model":"tiny","prompt":[2],"request_id":"same"})";
  for (const char* header : {"", "X-Request-Id: other\r\n", "X-Request-Id: same\r\n"}) {
    const RawReply reply = begin(body, header)->read_reply();
    EXPECT_EQ(reply.status, 400) << header;
    EXPECT_EQ(reply.error_param(), "request_id");
  }
}

TEST_F(ServerCompletions, AnXRequestIdThatComesAgainNamesTheFirstRequestOnly) {
  const std::string header = "X-Request-Id: trace\r\n";
  const auto first = begin(kBody, header);
  const auto request = group_.receive_request();
  EXPECT_EQ(request.request_id(), "trace");
  // While the first runs, and when it has its answer.
  const auto second = begin(R"({"model":"tiny","prompt":[4]})", header);
  group_.serve(request);
  const RawReply answer = first->read_reply();
  EXPECT_EQ(answer.headers.at("x-request-id"), "trace");
  EXPECT_EQ(answer.headers.count("x-client-request-id"), 0u);
  const auto third =
      begin(R"({"model":"tiny","prompt":[5],"stream":true})", header + "X-Request-Id: b\r\n");
  for (const auto* client : {&second, &third}) {
    const auto again = group_.receive_request();
    EXPECT_TRUE(again.request_id().starts_with("req-")) << again.request_id();
    group_.serve(again);
    const RawReply reply = (*client)->read_reply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("x-request-id"), again.request_id());
    EXPECT_EQ(reply.headers.at("x-client-request-id"), "trace");
    EXPECT_NE(reply.body.find("cmpl-" + again.request_id()), std::string::npos) << reply.body;
  }
}

TEST_F(ServerCompletions, ACompressedBodyIsRefusedAndNotRead) {
  for (const char* coding : {"gzip", "x-gzip", "br", "zstd", "gzip, identity"}) {
    const RawReply reply =
        begin("\x1f\x8b", fmt::format("Content-Encoding: {}\r\n", coding))->read_reply();
    EXPECT_EQ(reply.status, 415) << coding;
    EXPECT_EQ(reply.headers.at("accept-encoding"), "identity");
    EXPECT_NE(reply.error_message().find(coding), std::string::npos) << reply.error_message();
  }
  const auto client = begin(kBody, "Content-Encoding: Identity\r\n");
  group_.serve(group_.receive_request());
  EXPECT_EQ(client->read_reply().status, 200);
}

TEST_F(ServerCompletions, AClientThatHangsUpCancels) {
  for (const char* stream : {"true", "false"}) {
    const auto client =
        begin(fmt::format(R"({{"model":"tiny","prompt":[1],"stream":{}}})", stream));
    const std::string id = group_.receive_request().request_id();
    client->hang_up();
    EXPECT_EQ(group_.receive().cancel().request_id(), id);
    group_.send_failed(id, errc_to_wire(Errc::kCancelled), "cancelled");
  }
}

TEST_F(ServerCompletions, AGroupThatDiesGivesARetriableErrorWithRetryAfter) {
  const auto client = begin(kBody);
  group_.receive_request();
  group_.die();
  const RawReply reply = client->read_reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.count("retry-after"), 1u);
  EXPECT_TRUE(reply.json().at("error").at("retriable").as_bool());
}

TEST_F(ServerCompletions, GenerateTakesTokensAndAnswersWithTokens) {
  RawHttp client(server_.http_port());
  client.send_request(
      "POST", "/inference/v1/generate",
      R"({"request_id":"d1","model":"tiny","token_ids":[1,2,3],)"
      R"("sampling_params":{"max_tokens":1,"extra_args":{"kv_transfer_params":{}}},)"
      R"("return_token_ids":true})",
      "EPP-Profile: prefill\r\n");
  const auto request = group_.receive_request();
  EXPECT_EQ(request.request_id(), "d1");
  EXPECT_EQ(request.prompt_token_ids(), std::string("\1\0\0\0\2\0\0\0\3\0\0\0", 12));
  group_.serve(request);
  const RawReply reply = client.read_reply();
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto body = reply.json();
  EXPECT_EQ(body.at("request_id").as_string(), "d1");
  EXPECT_EQ(body.at("choices").at(0).at("token_ids"), (boost::json::value{7}));
  EXPECT_EQ(body.at("prompt_token_ids"), (boost::json::value{1, 2, 3}));
  EXPECT_EQ(body.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64(), 0);
  const auto& params = body.at("kv_transfer_params");
  EXPECT_EQ(params.at("millrace").at("lease_id").as_string(), "lease-1");
  EXPECT_EQ(params.at("prompt_token_ids"), (boost::json::value{1, 2, 3}));
}

TEST_F(ServerCompletions, APromptOfTokenIdsIsNotRepeatedUnasked) {
  const auto client = begin(kBody);
  group_.serve(group_.receive_request());
  EXPECT_EQ(client->read_reply().body.find("prompt_token_ids"), std::string::npos);
}

TEST_F(ServerCompletions, EveryAnswerNamesTheProcess) {
  const RawReply version = http_call(server_.http_port(), "GET", "/version");
  const std::string instance = version.headers.at("x-millrace-instance");
  EXPECT_EQ(instance.size(), 32u);
  EXPECT_EQ(post("{").headers.at("x-millrace-instance"), instance);
  RawHttp stream(server_.http_port());
  stream.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","prompt_token_ids":[1],"stream":true})");
  EXPECT_EQ(stream.read_head().headers.at("x-millrace-instance"), instance);
  RunningServer another;
  EXPECT_NE(http_call(another.http_port(), "GET", "/version").headers.at("x-millrace-instance"),
            instance);
}

// The data of the next event that has any; null after "[DONE]".
boost::json::value next_data(RawHttp& client) {
  for (;;) {
    const std::string event = client.read_event();
    if (event.starts_with("data: {")) return boost::json::parse(event.substr(6));
    if (event.empty() || event == "data: [DONE]") return nullptr;
  }
}

TEST_F(ServerCompletions, ProgressComesInEventsOfItsOwn) {
  const auto client = begin(R"({"model":"tiny","prompt":[1,2,3],"stream":true,)"
                            R"("return_progress":true})");
  EXPECT_EQ(client->read_head().headers.at("content-type"), "text/event-stream");
  const auto request = group_.receive_request();
  const auto layers_done = [&] {
    const boost::json::value data = next_data(*client);
    EXPECT_EQ(data.at("choices").as_array().size(), 0u);
    return data.at("prompt_progress").at("layers_done").as_int64();
  };
  EXPECT_EQ(layers_done(), 0);
  group_.send_started(request.request_id());
  EXPECT_EQ(layers_done(), 0);
  group_.send_layer(request.request_id(), 0);
  EXPECT_EQ(layers_done(), 1);
  group_.send_done(request.request_id());
  EXPECT_EQ(next_data(*client).at("choices").at(0).at("token_ids"), (boost::json::value{7}));
  EXPECT_EQ(next_data(*client), nullptr);
}

TEST_F(ServerCompletions, AFailureInAStreamThatHasBegunIsAnEvent) {
  const auto client =
      begin(R"({"model":"tiny","prompt":[1],"stream":true,"return_progress":true})");
  EXPECT_EQ(client->read_head().status, 200);
  const auto request = group_.receive_request();
  EXPECT_TRUE(next_data(*client).as_object().contains("prompt_progress"));
  group_.send_failed(request.request_id(), errc_to_wire(Errc::kIo), "disk full");
  boost::json::value data = next_data(*client);
  EXPECT_EQ(data.at("error").at("message").as_string(), "disk full");
  EXPECT_EQ(next_data(*client), nullptr);
}

// As in ServerCompletions, but streams begin at once and are never silent for long.
class ServerSignsOfLife : public ::testing::Test {
 protected:
  ServerSignsOfLife() { group_.join(FakeGroup::description("group-0", "g0")); }
  static ServerOptions options() {
    ServerOptions out = patient_options();
    out.http.early_outcome = std::chrono::milliseconds(1);
    out.http.keep_alive = std::chrono::milliseconds(10);
    return out;
  }
  RawHttp& begin(const std::string& target, const std::string& body) {
    client_.send_request("POST", target, body);
    EXPECT_EQ(client_.read_head().headers.at("content-type"), "text/event-stream");
    return client_;
  }

  RunningServer server_{options()};
  FakeGroup group_{server_.group_port()};
  RawHttp client_{server_.http_port()};
};

TEST_F(ServerSignsOfLife, AStreamOfACompletionHasCommentsWhileItsPromptWaits) {
  // The group is busy with another prompt, so this one waits in the queue.
  RawHttp other(server_.http_port());
  other.send_request("POST", "/v1/completions", kBody);
  const auto first = group_.receive_request();
  RawHttp& client = begin("/v1/completions", R"({"model":"tiny","prompt":[4],"stream":true})");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_event(), ": ping");
  group_.serve(first);
  const auto second = group_.receive_request();
  group_.send_started(second.request_id());
  EXPECT_EQ(client.read_event(), ": ping");
  group_.send_done(second.request_id());
  EXPECT_EQ(next_data(client).at("choices").at(0).at("token_ids"), (boost::json::value{7}));
  EXPECT_EQ(next_data(client), nullptr);
}

TEST_F(ServerSignsOfLife, APrefillsStreamTellsItsProgressInEventsIfAsked) {
  RawHttp& client = begin("/v1/prefill", R"({"model":"tiny","prompt_token_ids":[1,2],)"
                                         R"("stream":true,"return_progress":true})");
  const auto request = group_.receive_request();
  std::string event;
  while (!event.starts_with("event: progress\n")) {
    event = client.read_event();
    EXPECT_EQ(event.find("ping"), std::string::npos);
    ASSERT_FALSE(event.empty());
  }
  const auto data = boost::json::parse(event.substr(event.find("data: ") + 6));
  EXPECT_EQ(data.at("request_id").as_string(), request.request_id());
  EXPECT_EQ(data.at("status").as_string(), "queued");
  EXPECT_EQ(data.at("total").as_int64(), 2);
}

TEST_F(ServerSignsOfLife, AClientThatLeavesAStreamThatHasBegunCancels) {
  RawHttp& client = begin("/v1/completions", R"({"model":"tiny","prompt":[4],"stream":true})");
  const std::string id = group_.receive_request().request_id();
  client.hang_up();
  EXPECT_EQ(group_.receive().cancel().request_id(), id);
  group_.send_failed(id, errc_to_wire(Errc::kCancelled), "cancelled");
}

class ServerDecline : public ::testing::Test {
 protected:
  // The params that make a decode engine compute the prompt itself.
  static void expect_declined(const RawReply& reply, const std::string& why) {
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json().at("kv_transfer_params"), (boost::json::value{{"millrace", false}}));
    EXPECT_EQ(reply.json().at("declined").at("type").as_string(), why);
  }
};

TEST_F(ServerDecline, WhatCannotBePrefilledIsNoErrorForThoseThatAskForIt) {
  RunningServer server;
  const auto post = [&](const std::string& target, const std::string& body) {
    return http_call(server.http_port(), "POST", target, body);
  };
  const std::string ask = R"("millrace":{"decline_after_ms":5000}})";
  EXPECT_EQ(post("/v1/completions", R"({"model":"tiny","prompt":[1]})").status, 503);
  expect_declined(post("/v1/completions", R"({"model":"tiny","prompt":[1],)" + ask), "unavailable");
  expect_declined(post("/inference/v1/generate", R"({"model":"tiny","token_ids":[1],)" + ask),
                  "unavailable");
  EXPECT_NE(http_call(server.http_port(), "GET", "/metrics")
                .body.find("millrace_prefill_declined_total{reason=\"unavailable\"} 2\n"),
            std::string::npos);
}

TEST_F(ServerDecline, AFailureOfAGroupIsNoErrorEither) {
  ServerOptions options = patient_options();
  options.decline_after = std::chrono::hours(1);
  RunningServer server(options);
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/completions", kBody);
  group.send_failed(group.receive_request().request_id(), errc_to_wire(Errc::kIo), "disk full");
  expect_declined(client.read_reply(), "io");
  // What is wrong with the request itself stays an error.
  for (const char* body :
       {"{", R"({"model":"tiny","prompt":[100]})", R"({"model":"x","prompt":[1]})",
        R"({"model":"tiny","prompt":[1],"n":2})"}) {
    EXPECT_GE(http_call(server.http_port(), "POST", "/v1/completions", body).status, 400) << body;
  }
}

TEST_F(ServerDecline, APromptThatShouldTakeTooLongIsDeclinedOnceTimesAreLearnt) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  const auto ask = [&](RawHttp& client, int64_t decline_after_ms) {
    client.send_request("POST", "/v1/completions",
                        fmt::format(R"({{"model":"tiny","prompt":[1],"millrace":)"
                                    R"({{"decline_after_ms":{},"cache":"off"}}}})",
                                    decline_after_ms));
  };
  const auto forecast = [&] {
    return http_call(server.http_port(), "POST", "/v1/prefill:forecast",
                     R"({"model":"tiny","prompt_token_ids":[1],"cache":"off"})")
        .json();
  };
  // Each prompt takes 5 ms or more, as the coordinator sees it.
  for (int i = 0; i < 20 && !forecast().at("is_learnt").as_bool(); ++i) {
    RawHttp client(server.http_port());
    ask(client, 1);
    const std::string id = group.receive_request().request_id();
    group.send_started(id);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(5)) forecast();
    group.send_done(id);
    EXPECT_EQ(client.read_reply().headers.count("x-request-id"), 1u);
  }
  ASSERT_TRUE(forecast().at("is_learnt").as_bool());
  RawHttp hurried(server.http_port());
  ask(hurried, 1);
  expect_declined(hurried.read_reply(), "deadline_exceeded");
  RawHttp patient(server.http_port());
  ask(patient, 86'400'000);
  group.serve(group.receive_request());
  EXPECT_EQ(patient.read_reply().json().at("choices").at(0).at("token_ids"),
            (boost::json::value{7}));
}

}  // namespace
}  // namespace millrace::coordinator
