// SPDX-License-Identifier: Apache-2.0
// Clients that share a prefill, leave, and come back, over HTTP.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <optional>

#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

class ServerSharing : public ::testing::Test {
 protected:
  ServerSharing() : group_(server_.group_port()) {
    group_.join(FakeGroup::description("group-0", "g0"));
  }

  static std::string body(const std::string& id, const std::string& fields = {}) {
    return fmt::format(R"({{"model":"tiny","request_id":"{}","prompt_token_ids":[1,2,3]{}}})", id,
                       fields);
  }
  RawReply state(const std::string& id) {
    return http_call(server_.http_port(), "GET", "/v1/prefill/" + id);
  }
  // Until the server has noticed; every other call to it gives it time.
  void wait_for(const std::string& id, const std::string& status) {
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    while (!deadline.passed()) {
      const RawReply reply = state(id);
      if (reply.status == 200 && reply.json().at("status").as_string() == status.c_str()) return;
    }
    FAIL() << id << " is not " << status;
  }
  std::string metric(const std::string& name) {
    const std::string text = http_call(server_.http_port(), "GET", "/metrics").body;
    const auto begin = text.find("\n" + name + " ") + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  RunningServer server_;
  FakeGroup group_;
};

TEST_F(ServerSharing, TwoClientsOfOnePromptAreAnsweredByOnePrefill) {
  RawHttp first(server_.http_port());
  first.send_request("POST", "/v1/prefill", body("first"));
  const auto request = group_.receive_request();
  EXPECT_EQ(request.request_id(), "first");
  group_.send_started("first");
  group_.send_layer("first", 0);
  wait_for("first", "running");
  // The second gets the events of what is done, from the first layer on.
  RawHttp second(server_.http_port());
  second.send_request("POST", "/v1/prefill", body("second", R"(,"stream":true)"));
  EXPECT_EQ(second.read_head().status, 200);
  EXPECT_TRUE(second.read_event().starts_with("event: queued\n"));
  EXPECT_TRUE(second.read_event().starts_with("event: started\n"));
  EXPECT_TRUE(second.read_event().starts_with("event: layer\n"));
  group_.send_layer("first", 1);
  EXPECT_TRUE(second.read_event().starts_with("event: layer\n"));
  group_.send_done("first");
  EXPECT_FALSE(first.read_reply().json().at("joined").as_bool());
  const std::string done = second.read_event();
  const auto result = boost::json::parse(done.substr(done.find("data: ") + 6));
  EXPECT_TRUE(result.at("joined").as_bool());
  EXPECT_EQ(result.at("request_id").as_string(), "second");
  EXPECT_EQ(result.at("manifest").at("request_id").as_string(), "first");
  EXPECT_EQ(metric("millrace_prefill_joined_total"), "1");
  // Each has a lease of its own on the one cache, which the group keeps for the last.
  EXPECT_TRUE(group_.receive().has_lease_renew());
  for (const char* id : {"first", "second"}) {
    const auto released =
        http_call(server_.http_port(), "POST", fmt::format("/v1/prefill/{}/lease:release", id),
                  R"({"lease_id":"lease-1"})");
    EXPECT_EQ(released.status, 200) << released.body;
  }
  EXPECT_EQ(group_.receive().lease_release().request_id(), "first");
}

TEST_F(ServerSharing, AClientThatComesBackUnderItsIdGetsThePrefillThatItLeft) {
  const std::string fields = R"(,"on_disconnect":"finish")";
  {
    RawHttp client(server_.http_port());
    client.send_request("POST", "/v1/prefill", body("r", fields));
    group_.receive_request();
    group_.send_started("r");
    wait_for("r", "running");
    client.hang_up();
  }
  wait_for("r", "failed");
  group_.send_layer("r", 0);
  RawHttp client(server_.http_port());
  client.send_request("POST", "/v1/prefill", body("r", fields));
  wait_for("r", "running");
  group_.send_done("r");
  const RawReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.json().at("joined").as_bool());
  EXPECT_EQ(metric("millrace_prefill_wasted_token_layers_total{reason=\"cancelled\"}"), "0");
}

TEST_F(ServerSharing, ADeadlineIsAnsweredWithHowToGoOn) {
  const std::string fields = R"(,"on_disconnect":"finish","deadline_ms":1)";
  const RawReply late = http_call(server_.http_port(), "POST", "/v1/prefill", body("r", fields));
  EXPECT_EQ(late.status, 504);
  EXPECT_NE(late.error_message().find("the same prompt, sent again"), std::string::npos);
  group_.receive_request();
  group_.serve([] {
    protocol::PrefillRequest request;
    request.set_request_id("r");
    return request;
  }());
  EXPECT_TRUE(group_.receive().has_lease_renew());  // the result is held
  const RawReply held = http_call(server_.http_port(), "POST", "/v1/prefill", body("s"));
  EXPECT_EQ(held.status, 200);
  EXPECT_TRUE(held.json().at("joined").as_bool());
}

TEST_F(ServerSharing, ARequestThatReadsNoCacheHasAPrefillOfItsOwn) {
  RawHttp first(server_.http_port());
  RawHttp second(server_.http_port());
  first.send_request("POST", "/v1/prefill", body("first", R"(,"cache":"off")"));
  group_.serve(group_.receive_request());
  EXPECT_FALSE(first.read_reply().json().at("joined").as_bool());
  second.send_request("POST", "/v1/prefill", body("second", R"(,"cache":"off")"));
  EXPECT_EQ(group_.receive_request().request_id(), "second");
}

}  // namespace
}  // namespace millrace::coordinator
