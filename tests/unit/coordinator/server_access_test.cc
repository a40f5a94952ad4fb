// SPDX-License-Identifier: Apache-2.0
// Who may do what, over sockets: tokens, their scopes and quotas, and which requests belong to
// whom.
#include <boost/json.hpp>
#include <csignal>
#include <span>

#include "common/content/sha256.h"
#include "coordinator/server/server.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

std::string line(const std::string& name, const std::string& token, const std::string& rest) {
  return fmt::format("{} {} {}\n", name, sha256_hex(std::as_bytes(std::span(token))), rest);
}

std::string bearer(const std::string& token) {
  return "Authorization: Bearer " + token + "\r\n";
}

std::string prompt(const std::string& id) {
  return R"({"model":"tiny","prompt_token_ids":[1,2,3],"request_id":")" + id + "\"}";
}

class ServerAccessTest : public ::testing::Test {
 protected:
  // alice has three tokens; bob and the operator one each.
  static std::string everybody() {
    return line("alice", "alice-posts", "prefill") + line("alice", "alice-posts-too", "prefill") +
           line("alice", "alice-reads", "read") + line("bob", "bob-posts", "prefill") +
           line("ops", "ops-rules", "admin");
  }

  ServerOptions options() {
    ServerOptions out = patient_options();
    out.admin_port = 0;
    out.token_file = files_.file("tokens");
    return out;
  }
  RunningServer& start(const std::string& tokens) {
    files_.write("tokens", tokens);
    return server_.emplace(options());
  }
  RawReply call(const std::string& method, const std::string& target, const std::string& token,
                const std::string& body = {}) {
    return http_call(server_->http_port(), method, target, body,
                     token.empty() ? "" : bearer(token));
  }
  // Posts a request and plays the group's part until it ends.
  RawReply served(FakeGroup& group, const std::string& id, const std::string& token) {
    RawHttp client(server_->http_port());
    client.send_request("POST", "/v1/prefill", prompt(id), bearer(token));
    group.serve(group.receive_request());
    return client.read_reply();
  }

  test::TempDirectory files_;
  std::optional<RunningServer> server_;
};

TEST_F(ServerAccessTest, WhoHasNoTokenIsToldToShowOneBeforeTheBodyIsRead) {
  start(everybody());
  RawHttp client(server_->http_port());
  client.send("POST /v1/prefill HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  const RawReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.headers.at("www-authenticate"), R"(Bearer realm="millrace")");
  const auto body = reply.json();
  EXPECT_EQ(body.at("error").at("type"), "denied");
  EXPECT_EQ(body.at("error").at("code"), 401);
  EXPECT_EQ(body.at("error").at("retriable"), false);
  EXPECT_EQ(reply.error_message(), "this needs a token: 'Authorization: Bearer TOKEN'");
}

TEST_F(ServerAccessTest, OnlyProbesNeedNoToken) {
  start(everybody());
  const auto status = [&](const char* method, const char* target) {
    return call(method, target, "").status;
  };
  EXPECT_EQ(status("GET", "/health"), 200);
  EXPECT_EQ(status("GET", "/ready"), 503);  // no group
  for (const char* target : {"/metrics", "/version", "/v1/models", "/v1/prefill/r",
                             "/v1/prefill/r/events", "/nonsense"}) {
    EXPECT_EQ(status("GET", target), 401) << target;
  }
  for (const char* target :
       {"/v1/prefill", "/v1/completions", "/inference/v1/generate", "/v1/prefill/r/lease:renew",
        "/v1/prefill/r/lease:release", "/health"}) {
    EXPECT_EQ(status("POST", target), 401) << target;
  }
  EXPECT_EQ(status("DELETE", "/v1/prefill/r"), 401);
}

TEST_F(ServerAccessTest, ThePortForProbesAsksNobody) {
  start(everybody());
  EXPECT_EQ(http_call(server_->admin_port(), "GET", "/metrics").status, 200);
  EXPECT_EQ(http_call(server_->admin_port(), "GET", "/version").status, 200);
}

TEST_F(ServerAccessTest,
       TheOverviewShowsAllNamesRequestsToAdminsAndOnThePortForProbesTheirFigures) {
  start(everybody());
  const auto probe = [&](const std::string& target, const std::string& token) {
    const std::string header = token.empty() ? "" : "Authorization: Bearer " + token + "\r\n";
    return http_call(server_->admin_port(), "GET", target, "", header);
  };
  FakeGroup group(server_->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  ASSERT_EQ(served(group, "of-alice", "alice-posts").status, 200);
  ASSERT_EQ(served(group, "of-bob", "bob-posts").status, 200);
  for (const char* target : {"/", "/overview", "/overview/of-bob"}) {
    EXPECT_EQ(call("GET", target, "bob-posts").status, 403) << target;
    EXPECT_EQ(call("GET", target, "").status, 401) << target;
    EXPECT_EQ(call("GET", target, "ops-rules").status, 200) << target;
    EXPECT_EQ(http_call(server_->admin_port(), "POST", target).status, 404) << target;
    EXPECT_EQ(probe(target, "ops-rules").status, 200) << target;
  }
  for (const char* token : {"", "bob-posts", "mallory"}) {
    const RawReply hidden = probe("/overview", token);
    EXPECT_EQ(hidden.status, 200) << token;
    for (const char* name : {"bob", "alice"}) {
      EXPECT_EQ(hidden.body.find(name), std::string::npos) << hidden.body;
    }
    const auto id = hidden.json().at("ended").at(0).at("request_id").as_string();
    EXPECT_EQ(probe("/overview/" + std::string(id), token).status, 200);
    EXPECT_EQ(probe("/overview/of-bob", token).status, 404);
  }
  const RawReply overview = probe("/overview", "ops-rules");
  EXPECT_EQ(overview.headers.at("cache-control"), "no-store");
  const auto ended = overview.json().at("ended");
  ASSERT_EQ(ended.as_array().size(), 2U);
  EXPECT_EQ(ended.at(0).at("request_id").as_string(), "of-bob");
  EXPECT_EQ(ended.at(0).at("owner").as_string(), "bob");
  EXPECT_EQ(ended.at(1).at("owner").as_string(), "alice");
  EXPECT_EQ(overview.body.find("lease-1"), std::string::npos);
  const RawReply page = http_call(server_->admin_port(), "GET", "/");
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_TRUE(page.headers.at("content-security-policy").starts_with("default-src 'none'; "));
}

TEST_F(ServerAccessTest, ATokenThatIsUnknownOrMalformedIsNoToken) {
  start(everybody());
  EXPECT_EQ(call("GET", "/v1/models", "mallory").error_message(), "this token is not accepted");
  const auto with = [&](const std::string& headers) {
    return http_call(server_->http_port(), "GET", "/v1/models", "", headers);
  };
  EXPECT_EQ(with("Authorization: Basic YTpi\r\n").status, 401);
  EXPECT_EQ(with("Authorization: Basic YTpi\r\n").headers.count("www-authenticate"), 1u);
  EXPECT_EQ(with("Authorization: Bearer alice reads\r\n").status, 401);
  EXPECT_EQ(with("authorization: bearer alice-reads\r\n").status, 200);
  EXPECT_EQ(with(bearer("alice-reads") + bearer("ops-rules")).status, 400);
}

TEST_F(ServerAccessTest, AScopeThatDoesNotReachIsNamed) {
  start(everybody());
  const RawReply posted = call("POST", "/v1/prefill", "alice-reads", prompt("r"));
  EXPECT_EQ(posted.status, 403);
  EXPECT_EQ(posted.headers.count("www-authenticate"), 0u);
  EXPECT_EQ(posted.error_message(), "this token of 'alice' has the scope read; this needs prefill");
  EXPECT_EQ(call("POST", "/v1/completions", "alice-reads", "{}").status, 403);
  EXPECT_EQ(call("POST", "/inference/v1/generate", "alice-reads", "{}").status, 403);
  EXPECT_EQ(call("DELETE", "/v1/prefill/r", "alice-reads").status, 403);
  EXPECT_EQ(call("GET", "/metrics", "alice-posts").status, 403);
  EXPECT_EQ(call("GET", "/metrics", "ops-rules").status, 200);
  EXPECT_EQ(call("GET", "/v1/models", "alice-reads").status, 200);
}

TEST_F(ServerAccessTest, ARequestIsThereForTheTokensOfItsNameAndForAdmins) {
  start(everybody());
  FakeGroup group(server_->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  ASSERT_EQ(served(group, "r", "alice-posts").status, 200);
  const std::string lease = R"({"lease_id":"lease-1"})";
  // Word for word the answer for a request that does not exist.
  for (const auto& [method, target, body] :
       {std::tuple("GET", "/v1/prefill/r", ""), std::tuple("GET", "/v1/prefill/r/events", ""),
        std::tuple("DELETE", "/v1/prefill/r", ""),
        std::tuple("POST", "/v1/prefill/r/lease:release", lease.c_str())}) {
    const RawReply reply = call(method, target, "bob-posts", body);
    EXPECT_EQ(reply.status, 404) << method << target;
    EXPECT_EQ(reply.error_message(), "no request 'r'");
  }
  EXPECT_EQ(call("POST", "/v1/prefill", "bob-posts", prompt("r")).error_message(),
            "request id 'r' is in use");
  EXPECT_EQ(call("GET", "/v1/prefill/r", "alice-reads").status, 200);
  EXPECT_EQ(call("GET", "/v1/prefill/r/events", "alice-posts-too").status, 200);
  EXPECT_EQ(call("GET", "/v1/prefill/r", "ops-rules").status, 200);
  EXPECT_EQ(call("POST", "/v1/prefill/r/lease:release", "alice-reads", lease).status, 200);
}

TEST_F(ServerAccessTest, AnEndedRequestIsNotReplacedByAnothersOfTheSameId) {
  start(everybody());
  FakeGroup group(server_->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  ASSERT_EQ(served(group, "r", "alice-posts").status, 200);
  ASSERT_EQ(call("DELETE", "/v1/prefill/r", "alice-posts").status, 200);
  EXPECT_TRUE(group.receive().has_lease_release());
  EXPECT_EQ(call("POST", "/v1/prefill", "bob-posts", prompt("r")).status, 400);
  EXPECT_EQ(served(group, "r", "alice-posts").status, 200);
}

TEST_F(ServerAccessTest, AGroupTellsANewCoordinatorWhoseALeaseIs) {
  start(everybody());
  FakeGroup group(server_->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server_->http_port());
  client.send_request("POST", "/v1/prefill", prompt("r"), bearer("alice-posts"));
  const protocol::PrefillRequest request = group.receive_request();
  EXPECT_EQ(request.owner(), "alice");
  group.send_failed("r", 5, "enough");
  protocol::Envelope held;
  auto& done = *held.mutable_lease_held()->mutable_done();
  done.set_request_id("older");
  done.set_owner("alice");
  done.mutable_manifest()->set_model("tiny");
  done.mutable_manifest()->set_request_id("older");
  done.mutable_manifest()->set_lease_id("lease-1");
  held.mutable_lease_held()->set_expires_in_ms(60000);
  group.send(held);
  EXPECT_EQ(client.read_reply().status, 429);
  const Deadline patience = Deadline::after(std::chrono::seconds(10));
  while (call("GET", "/v1/prefill/older", "alice-reads").status != 200 && !patience.passed()) {
  }
  EXPECT_EQ(call("GET", "/v1/prefill/older", "alice-reads").status, 200);
  EXPECT_EQ(call("GET", "/v1/prefill/older", "bob-posts").status, 404);
}

TEST_F(ServerAccessTest, AQuotaThatIsUsedUpSaysWhenToTryAgain) {
  start(line("a", "posts", "prefill tokens-per-minute=3") + line("b", "too", "prefill requests=1"));
  FakeGroup group(server_->group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  ASSERT_EQ(served(group, "r1", "posts").status, 200);
  const RawReply late = call("POST", "/v1/prefill", "posts", prompt("r2"));
  EXPECT_EQ(late.status, 429);
  EXPECT_GE(std::stoi(late.headers.at("retry-after")), 1);
  EXPECT_EQ(late.error_message(), "'a' has used up its quota of 3 prompt tokens a minute");
  RawHttp running(server_->http_port());
  running.send_request("POST", "/v1/prefill", prompt("r3"), bearer("too"));
  const auto request = group.receive_request();
  EXPECT_EQ(call("POST", "/v1/prefill", "too", prompt("r4")).error_message(),
            "1 requests of 'b' wait or run, its quota");
  const auto metrics = http_call(server_->admin_port(), "GET", "/metrics").body;
  for (const auto* line :
       {"millrace_prefill_requests_total{outcome=\"refused\",reason=\"quota\"} 2\n",
        "millrace_prefill_requests_total{outcome=\"refused\",reason=\"exhausted\"} 0\n"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
  }
  group.serve(request);
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(served(group, "r4", "too").status, 200);
}

TEST_F(ServerAccessTest, AFileIsReadAgainWhenAskedAndABadOneIsNot) {
  start(line("a", "old", "read"));
  ASSERT_EQ(call("GET", "/version", "old").status, 200);
  files_.write("tokens", line("a", "new", "read"));
  server_->reload();
  const Deadline patience = Deadline::after(std::chrono::seconds(10));
  while (call("GET", "/version", "new").status != 200 && !patience.passed()) {
  }
  EXPECT_EQ(call("GET", "/version", "old").status, 401);
  files_.write("tokens", "nonsense");
  server_->reload();
  EXPECT_EQ(call("GET", "/version", "new").status, 200);
}

TEST_F(ServerAccessTest, AConnectionThatIsOpenNeedsTheNewTokensToo) {
  start(line("a", "old", "read"));
  RawHttp client(server_->http_port());
  client.send_request("GET", "/version", "", bearer("old"));
  ASSERT_EQ(client.read_reply().status, 200);
  files_.write("tokens", line("a", "new", "read"));
  server_->reload();
  while (call("GET", "/version", "new").status != 200) {
  }
  client.send_request("GET", "/version", "", bearer("old"));
  EXPECT_EQ(client.read_reply().status, 401);
}

TEST_F(ServerAccessTest, SighupReloads) {
  files_.write("tokens", line("a", "old", "read"));
  server_.emplace(options(), /*handle_signals=*/true);
  // Once it answers, it handles signals.
  ASSERT_EQ(call("GET", "/version", "old").status, 200);
  files_.write("tokens", line("a", "new", "read"));
  ::raise(SIGHUP);
  const Deadline patience = Deadline::after(std::chrono::seconds(10));
  while (call("GET", "/version", "new").status != 200 && !patience.passed()) {
  }
  EXPECT_EQ(call("GET", "/version", "new").status, 200);
}

TEST_F(ServerAccessTest, AServerWithABadFileDoesNotStart) {
  files_.write("tokens", "nonsense");
  const auto created = Server::create(options());
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.error().message,
            files_.file("tokens") +
                ": line 1: a line has a name, a SHA-256 and scopes; here are 1 words");
}

}  // namespace
}  // namespace millrace::coordinator
