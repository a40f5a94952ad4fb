// SPDX-License-Identifier: Apache-2.0
// The whole coordinator over loopback sockets, with groups played by the test.
#include <boost/json.hpp>

#include "common/errc_wire.h"
#include "coordinator/server/server.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

constexpr const char* kPrompt =
    R"({"model": "tiny", "request_id": "r1", "prompt_token_ids": [1, 2, 3]})";

TEST(Server, AnswersAPrefillWithTheManifestOfTheGroup) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", kPrompt);
  const auto request = group.receive_request();
  EXPECT_EQ(request.request_id(), "r1");
  EXPECT_EQ(request.prompt_token_ids(), std::string("\1\0\0\0\2\0\0\0\3\0\0\0", 12));
  group.serve(request);
  const RawReply reply = client.read_reply();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("x-request-id"), "r1");
  const auto body = reply.json();
  EXPECT_EQ(body.at("status").as_string(), "done");
  EXPECT_EQ(body.at("first_token_id").as_int64(), 7);
  EXPECT_EQ(body.at("manifest").at("lease_id").as_string(), "lease-1");
  EXPECT_DOUBLE_EQ(body.at("phases").at("attention").as_double(), 0.5);
  EXPECT_DOUBLE_EQ(body.at("stages").at("layers").as_double(), 0.75);
  EXPECT_EQ(body.at("stored").at("bytes").to_number<int64_t>(), 640);
  EXPECT_EQ(body.at("stored").at("while_computing").to_number<int64_t>(), 512);
}

TEST(Server, StreamsQueuedStartedLayersAndDoneInOrder) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","prompt_token_ids":[1],"stream":true})");
  const RawReply head = client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream");
  EXPECT_TRUE(client.read_event().starts_with("event: queued\n"));
  const auto request = group.receive_request();
  EXPECT_EQ(request.request_id(), head.headers.at("x-request-id"));
  group.send_started(request.request_id());
  EXPECT_TRUE(client.read_event().starts_with("event: started\n"));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    group.send_layer(request.request_id(), layer);
    const std::string event = client.read_event();
    EXPECT_TRUE(event.starts_with("event: layer\n")) << event;
    EXPECT_NE(event.find(fmt::format("\"layer\":{},\"num_layers\":3", layer)), std::string::npos)
        << event;
  }
  group.send_done(request.request_id());
  const std::string done = client.read_event();
  EXPECT_TRUE(done.starts_with("event: done\n")) << done;
  EXPECT_NE(done.find("\"manifest\""), std::string::npos);
}

TEST(Server, AStreamingRequestsManifestComesBeforeItsLayersAndWithoutAResult) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request(
      "POST", "/v1/prefill",
      R"({"model":"tiny","prompt_token_ids":[1],"stream":true,"handover":"streaming"})");
  EXPECT_EQ(client.read_head().status, 200);
  const auto request = group.receive_request();
  EXPECT_EQ(request.options().handover(), protocol::HANDOVER_STREAMING);
  group.send_started(request.request_id());
  group.send_opened(request.request_id());
  for (uint32_t layer = 0; layer < 3; ++layer) group.send_layer(request.request_id(), layer);
  group.send_done(request.request_id());
  std::vector<std::string> names, bodies;
  do {
    const std::string event = client.read_event();
    const size_t line = event.find('\n');
    names.push_back(event.substr(0, line));
    bodies.push_back(event.substr(line + 1));
  } while (names.back() != "event: done" && names.size() < 10);
  EXPECT_EQ(names, (std::vector<std::string>{"event: queued", "event: started", "event: manifest",
                                             "event: layer", "event: layer", "event: layer",
                                             "event: done"}));
  EXPECT_NE(bodies[2].find("\"lease_id\":\"lease-1\""), std::string::npos) << bodies[2];
  for (const char* field : {"first_token_id", "top_logprobs", "density", "recall", "tiers"}) {
    EXPECT_EQ(bodies[2].find(field), std::string::npos) << bodies[2];
  }
}

TEST(Server, AManifestNamesTheCoordinatorThatHandedItOut) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","request_id":"r1","prompt_token_ids":[1],)"
                      R"("stream":true,"handover":"streaming"})");
  group.receive_request();
  group.send_started("r1");
  group.send_opened("r1");
  group.send_done("r1");
  const std::string named =
      "\"coordinator_instance\":\"" + client.read_head().headers.at("x-millrace-instance") + "\"";
  for (const char* name : {"queued", "started", "manifest", "done"}) {
    const std::string event = client.read_event();
    ASSERT_TRUE(event.starts_with(std::string("event: ") + name)) << event;
    EXPECT_EQ(event.find(named) != std::string::npos,
              name == std::string("manifest") || name == std::string("done"))
        << event;
  }
  const RawReply status = http_call(server.http_port(), "GET", "/v1/prefill/r1");
  EXPECT_NE(status.body.find(named), std::string::npos) << status.body;
}

TEST(Server, ACallThatAnotherInstanceIsToAnswerIsRefusedByName) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","request_id":"r1","prompt_token_ids":[1]})");
  group.receive_request();
  group.send_started("r1");
  const auto call = [&](const std::string& method, const std::string& target,
                        const std::string& instance) {
    return http_call(server.http_port(), method, target, "",
                     "X-Millrace-Instance: " + instance + "\r\n");
  };
  for (const auto& [method, target] :
       {std::pair("DELETE", "/v1/prefill/r1"), std::pair("GET", "/v1/prefill/r1"),
        std::pair("GET", "/v1/prefill/r1/events"),
        std::pair("POST", "/v1/prefill/r1/lease:release")}) {
    const RawReply refused = call(method, target, "before");
    EXPECT_EQ(refused.status, 404) << target;
    EXPECT_EQ(refused.error_message(),
              "the coordinator's instance \"before\" does not answer here; this one is '" +
                  refused.headers.at("x-millrace-instance") + "'");
  }
  const RawReply status = http_call(server.http_port(), "GET", "/v1/prefill/r1");
  EXPECT_EQ(status.json().at("status").as_string(), "running");
  const std::string own = status.headers.at("x-millrace-instance");
  EXPECT_EQ(call("DELETE", "/v1/prefill/r1", own).status, 200);
  EXPECT_EQ(call("GET", "/v1/models", "before").status, 200);
}

// Reads events up to one that ends the stream. Returns their names.
std::vector<std::string> names_of_events(RawHttp& client) {
  std::vector<std::string> names;
  do {
    const std::string event = client.read_event();
    names.push_back(event.substr(0, event.find('\n')));
  } while (names.back() != "event: done" && names.back() != "event: error" && names.size() < 10);
  return names;
}

TEST(Server, ClientsThatDidNotPostARequestFollowItFromItsBeginning) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp poster(server.http_port());
  poster.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","request_id":"r1","prompt_token_ids":[1],)"
                      R"("stream":true,"handover":"streaming"})");
  group.receive_request();
  group.send_started("r1");
  group.send_opened("r1");
  group.send_layer("r1", 0);
  EXPECT_EQ(poster.read_head().status, 200);
  for (const char* name : {"queued", "started", "manifest", "layer"}) {
    EXPECT_TRUE(poster.read_event().starts_with(std::string("event: ") + name));
  }
  RawHttp early(server.http_port());
  early.send_request("GET", "/v1/prefill/r1/events");
  const RawReply head = early.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(head.headers.at("x-request-id"), "r1");
  group.send_layer("r1", 1);
  group.send_layer("r1", 2);
  group.send_done("r1");
  const std::vector<std::string> all{"event: queued", "event: started", "event: manifest",
                                     "event: layer",  "event: layer",   "event: layer",
                                     "event: done"};
  EXPECT_EQ(names_of_events(early), all);
  EXPECT_EQ(names_of_events(poster), std::vector<std::string>(all.end() - 3, all.end()));
  RawHttp late(server.http_port());
  late.send_request("GET", "/v1/prefill/r1/events");
  EXPECT_EQ(late.read_head().status, 200);
  EXPECT_EQ(names_of_events(late).back(), "event: done");
}

TEST(Server, AFollowerThatLeavesCancelsNothing) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp poster(server.http_port());
  poster.send_request("POST", "/v1/prefill",
                      R"({"model":"tiny","request_id":"r1","prompt_token_ids":[1],"stream":true})");
  group.receive_request();
  RawHttp stays(server.http_port());
  {
    RawHttp leaves(server.http_port());
    for (RawHttp* follower : {&leaves, &stays}) {
      follower->send_request("GET", "/v1/prefill/r1/events");
      EXPECT_EQ(follower->read_head().status, 200);
      EXPECT_TRUE(follower->read_event().starts_with("event: queued\n"));
    }
  }
  group.send_started("r1");
  group.send_done("r1");
  EXPECT_EQ(poster.read_head().status, 200);
  EXPECT_EQ(names_of_events(poster).back(), "event: done");
  EXPECT_EQ(names_of_events(stays).back(), "event: done");
}

TEST(Server, EventsOfAnUnknownRequestAre404) {
  RunningServer server;
  EXPECT_EQ(http_call(server.http_port(), "GET", "/v1/prefill/r1/events").status, 404);
}

TEST(Server, ErrorsNameTheirRequestInBodyHeaderAndEvent) {
  RunningServer server;
  const RawReply early = http_call(server.http_port(), "POST", "/v1/prefill", "{");
  EXPECT_EQ(early.json().at("request_id").as_string(), early.headers.at("x-request-id"));
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  for (const bool stream : {false, true}) {
    RawHttp client(server.http_port());
    client.send_request("POST", "/v1/prefill",
                        fmt::format(R"({{"model":"tiny","request_id":"r1","prompt_token_ids":[1],)"
                                    R"("stream":{}}})",
                                    stream));
    group.receive_request();
    group.send_failed("r1", errc_to_wire(Errc::kIo), "disk full");
    std::string text;
    if (stream) {
      client.read_head();
      while (!text.starts_with("event: error\n")) text = client.read_event();
    } else {
      text = client.read_reply().body;
    }
    EXPECT_NE(text.find(R"("request_id":"r1")"), std::string::npos) << text;
  }
}

TEST(Server, MetricsNameTheVersionAndTheProcess) {
  RunningServer server;
  const std::string text = http_call(server.http_port(), "GET", "/metrics").body;
  EXPECT_NE(text.find("millrace_build_info{version=\""), std::string::npos);
  EXPECT_NE(text.find("millrace_process_open_descriptors "), std::string::npos);
}

}  // namespace
}  // namespace millrace::coordinator
