// SPDX-License-Identifier: Apache-2.0
// What happens when connections or the memory for bodies run out, over sockets.
#include <boost/json.hpp>

#include "coordinator/server/server.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

constexpr int kBodyBytes = 600'000;

ServerOptions one_large_body() {
  ServerOptions options = patient_options();
  options.http.max_body_bytes = 1'000'000;
  options.http.body_pool_bytes = 1'000'000;
  return options;
}

ServerOptions one_connection() {
  ServerOptions options = patient_options();
  options.http.max_connections = 1;
  return options;
}

std::string announce(const std::string& id, const std::string& how) {
  return fmt::format(
      "POST /v1/prefill?model=tiny&request_id={} HTTP/1.1\r\nHost: x\r\n"
      "Content-Type: application/octet-stream\r\n{}\r\n\r\n",
      id, how);
}

// 100: there is room for the body, and the server now waits for it.
int status_of_announcement(RawHttp& client, const std::string& id) {
  client.send(announce(id, fmt::format("Content-Length: {}\r\nExpect: 100-continue", kBodyBytes)));
  return client.read_head().status;
}

// Tries until the server has noticed what happened on other connections.
template <typename Try>
int eventually(int wanted, Try&& attempt) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  int status = attempt();
  while (status != wanted && !deadline.passed()) status = attempt();
  return status;
}

TEST(ServerBounds, ABodyThatFindsNoRoomBesideOthersIsTurnedAwayForNow) {
  RunningServer server(one_large_body());
  auto first = std::make_unique<RawHttp>(server.http_port());
  ASSERT_EQ(status_of_announcement(*first, "first"), 100);
  RawHttp second(server.http_port());
  second.send(announce("second", fmt::format("Content-Length: {}", kBodyBytes)));
  const RawReply reply = second.read_reply();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(
      reply.error_message(),
      "no room for a body of 586 KiB now: other bodies take 586 KiB of a total limit of 977 KiB");
  RawHttp chunked(server.http_port());
  chunked.send(announce("chunked", "Transfer-Encoding: chunked") +
               fmt::format("{:x}\r\n{}\r\n", kBodyBytes, std::string(kBodyBytes, '\0')));
  EXPECT_EQ(chunked.read_reply().status, 429);
  // A small body needs none of it.
  EXPECT_EQ(http_call(server.http_port(), "POST", "/v1/prefill/r/lease:release", "{}").status, 400);
  first->hang_up();
  EXPECT_EQ(eventually(100,
                       [&] {
                         RawHttp again(server.http_port());
                         return status_of_announcement(again, "again");
                       }),
            100);
}

TEST(ServerBounds, APromptThatIsQueuedIsNoBodyAnyMore) {
  RunningServer server(one_large_body());
  FakeGroup group(server.group_port());
  FakeModel model;
  model.max_prompt_tokens = kBodyBytes;
  group.join(FakeGroup::description("group-0", "g0", model));
  RawHttp first(server.http_port());
  ASSERT_EQ(status_of_announcement(first, "first"), 100);
  first.send(std::string(kBodyBytes, '\0'));
  EXPECT_EQ(group.receive_request().request_id(), "first");
  RawHttp second(server.http_port());
  EXPECT_EQ(status_of_announcement(second, "second"), 100);
}

TEST(ServerBounds, BeyondTheLastConnectionProbesAreAnsweredAndOthersToldWhy) {
  RunningServer server(one_connection());
  RawHttp held(server.http_port());
  held.send_request("GET", "/version");
  ASSERT_EQ(held.read_reply().status, 200);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
  EXPECT_EQ(http_call(server.http_port(), "HEAD", "/health").status, 200);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/metrics").status, 200);
  const RawReply ready = http_call(server.http_port(), "GET", "/ready");
  EXPECT_EQ(ready.error_message(), "no worker group is ready");
  EXPECT_EQ(ready.headers.at("connection"), "close");
  const RawReply refused =
      http_call(server.http_port(), "POST", "/v1/prefill", std::string(1000, ' '));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "5");
  EXPECT_EQ(refused.error_message().rfind("all 1 HTTP connections are in use", 0), 0u);
  held.hang_up();
  EXPECT_EQ(
      eventually(200, [&] { return http_call(server.http_port(), "GET", "/version").status; }),
      200);
}

TEST(ServerBounds, AProbeConnectionThatSaysNothingGivesItsPlaceUp) {
  ServerOptions options = one_connection();
  options.http.health_probe_connections = 1;
  options.http.health_probe_idle = std::chrono::milliseconds(500);  // enough to ask in
  RunningServer server(options);
  RawHttp held(server.http_port());
  held.send_request("GET", "/version");
  ASSERT_EQ(held.read_reply().status, 200);
  RawHttp silent(server.http_port());
  EXPECT_EQ(http_call(server.http_port(), "GET", "/health").status, 200);
  EXPECT_TRUE(silent.closed_by_peer());
}

}  // namespace
}  // namespace millrace::coordinator
