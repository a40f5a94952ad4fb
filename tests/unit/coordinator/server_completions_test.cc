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

TEST_F(ServerCompletions, AnIdOfABodyThatIsInUseIsRefused) {
  const char* body = R"({"model":"tiny","prompt":[1],"request_id":"same"})";
  const auto first = begin(body);
  EXPECT_EQ(group_.receive_request().request_id(), "same");
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
  const auto second = begin(kBody, header);
  group_.serve(request);
  const RawReply answer = first->read_reply();
  EXPECT_EQ(answer.headers.at("x-request-id"), "trace");
  EXPECT_EQ(answer.headers.count("x-client-request-id"), 0u);
  const auto third =
      begin(R"({"model":"tiny","prompt":[1,2,3],"stream":true})", header + "X-Request-Id: b\r\n");
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

}  // namespace
}  // namespace millrace::coordinator
