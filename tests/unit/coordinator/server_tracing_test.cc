// SPDX-License-Identifier: Apache-2.0
// Traces of the whole coordinator, with group, client and collector played by the test.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <regex>
#include <set>

#include "tests/support/otlp_receiver.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

using millrace::testing::OtlpReceiver;
using millrace::testing::received_spans;
using millrace::testing::ReceivedSpan;
using millrace::testing::span_named;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParentId = "00f067aa0ba902b7";

std::string traceparent(const std::string& flags, const std::string& trace_id = kTraceId) {
  return "traceparent: 00-" + trace_id + "-" + kParentId + "-" + flags + "\r\n";
}

class ServerTracingTest : public ::testing::Test {
 protected:
  void start(double share = 1) {
    ServerOptions options = patient_options();
    options.otlp_endpoint =
        tracing::OtlpEndpoint::parse(fmt::format("http://127.0.0.1:{}", collector_.port())).value();
    options.trace_share = share;
    server_.emplace(options);
    group_.emplace(server_->group_port());
    group_->join(FakeGroup::description("group-0", "g0"));
  }

  // Has a prompt computed; returns its status.
  int prefill(const std::string& id, const std::string& headers = {}) {
    RawHttp client(server_->http_port());
    client.send_request("POST", "/v1/prefill", body(id), headers);
    group_->serve(group_->receive_request());
    return client.read_reply().status;
  }
  static std::string body(const std::string& id) {
    return fmt::format(R"({{"model": "tiny", "request_id": "{}", "prompt_token_ids": [1, 2, 3]}})",
                       id);
  }
  void release(const std::string& id) {
    const auto reply =
        http_call(server_->http_port(), "POST", "/v1/prefill/" + id + "/lease:release",
                  R"({"lease_id":"lease-1"})");
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
  // The spans of as many requests of the coordinator as there have to be for `count` of them.
  std::vector<ReceivedSpan> receive(size_t count) {
    std::vector<ReceivedSpan> all;
    while (all.size() < count && !HasFailure()) {
      const auto request = collector_.receive();
      if (request.body.empty()) break;
      collector_.answer(200);
      const auto spans = received_spans(request.body);
      all.insert(all.end(), spans.begin(), spans.end());
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  std::string metrics() { return http_call(server_->http_port(), "GET", "/metrics").body; }

  OtlpReceiver collector_;
  std::optional<RunningServer> server_;
  std::optional<FakeGroup> group_;
};

TEST_F(ServerTracingTest, ARequestIsAPartOfItsClientsTrace) {
  start();
  ASSERT_EQ(prefill("r1", traceparent("01")), 200);
  const auto spans = receive(4);
  const ReceivedSpan own = span_named(spans, "POST /v1/prefill");
  const ReceivedSpan queue = span_named(spans, "queue");
  const ReceivedSpan run = span_named(spans, "prefill");
  const ReceivedSpan layers = span_named(spans, "layers");
  EXPECT_EQ(own.parent(), kParentId);
  EXPECT_EQ(own.json.at("kind").as_int64(), 2);
  EXPECT_EQ(own.service, "millrace-coordinator");
  EXPECT_EQ(own.attribute("gen_ai.request.model").as_string(), "tiny");
  EXPECT_EQ(own.attribute("gen_ai.usage.input_tokens").as_string(), "3");
  EXPECT_EQ(own.attribute("gen_ai.response.id").as_string(), "r1");
  EXPECT_EQ(queue.parent(), own.id());
  EXPECT_EQ(run.parent(), own.id());
  EXPECT_EQ(run.attribute("millrace.group").as_string(), "group-0");
  EXPECT_EQ(layers.parent(), run.id());
  EXPECT_EQ(layers.service, "millrace-worker");
  EXPECT_EQ(layers.instance, "group-0");
  const auto& events = run.json.at("events").as_array();
  ASSERT_EQ(events.size(), 3u);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].at("name").as_string(), "layer");
    const auto layer =
        millrace::testing::attribute_of(events[i].at("attributes"), "millrace.layer");
    EXPECT_EQ(layer.as_string(), std::to_string(i));
  }
  std::set<std::string> ids;
  for (const ReceivedSpan& span : spans) {
    EXPECT_EQ(span.trace(), kTraceId);
    EXPECT_TRUE(std::regex_match(span.id(), std::regex("[0-9a-f]{16}"))) << span.id();
    EXPECT_TRUE(ids.insert(span.id()).second);
    EXPECT_LE(own.begin(), span.begin());
    EXPECT_LE(span.begin(), span.end());
    EXPECT_LE(span.end(), own.end());
  }
  EXPECT_LE(queue.end(), run.begin());
}

TEST_F(ServerTracingTest, TheHandOverFollowsWhenTheLeaseIsReleased) {
  start();
  ASSERT_EQ(prefill("r1", traceparent("01")), 200);
  const ReceivedSpan own = span_named(receive(4), "POST /v1/prefill");
  release("r1");
  const ReceivedSpan hand_over = span_named(receive(1), "hand-over");
  EXPECT_EQ(hand_over.parent(), own.id());
  EXPECT_EQ(hand_over.trace(), kTraceId);
  EXPECT_EQ(hand_over.attribute("millrace.lease").as_string(), "released");
}

TEST_F(ServerTracingTest, WhatItsClientDoesNotSampleIsNotTraced) {
  start();
  const std::string other(32, 'a');
  ASSERT_EQ(prefill("r1", traceparent("00")), 200);
  ASSERT_EQ(prefill("r2", traceparent("01", other)), 200);
  for (const ReceivedSpan& span : receive(4)) EXPECT_EQ(span.trace(), other) << span.name;
}

TEST_F(ServerTracingTest, ARequestWithoutAUsableTraceBeginsOne) {
  start();
  std::set<std::string> traces;
  const std::string twice = traceparent("01") + traceparent("01");
  for (const std::string& headers :
       {std::string(), std::string("traceparent: 00-0-0-01\r\n"), twice}) {
    ASSERT_EQ(prefill(fmt::format("r{}", traces.size()), headers), 200);
    const ReceivedSpan own = span_named(receive(4), "POST /v1/prefill");
    EXPECT_FALSE(own.json.contains("parentSpanId"));
    EXPECT_NE(own.trace(), kTraceId);
    EXPECT_TRUE(traces.insert(own.trace()).second);
  }
}

TEST_F(ServerTracingTest, TheShareCountsOnlyWhereTheClientDoesNotSay) {
  start(/*share=*/0);
  ASSERT_EQ(prefill("r1"), 200);
  ASSERT_EQ(prefill("r2", traceparent("01")), 200);
  for (const ReceivedSpan& span : receive(4)) EXPECT_EQ(span.trace(), kTraceId) << span.name;
}

TEST_F(ServerTracingTest, ARefusedRequestHasItsStatus) {
  start();
  const auto reply = http_call(server_->http_port(), "POST", "/v1/completions",
                               R"({"model": "none", "prompt": [1]})", traceparent("01"));
  ASSERT_EQ(reply.status, 404);
  const ReceivedSpan own = span_named(receive(1), "POST /v1/completions");
  EXPECT_EQ(own.attribute("http.response.status_code").as_string(), "404");
  EXPECT_EQ(own.parent(), kParentId);
}

TEST_F(ServerTracingTest, ACollectorThatHangsHoldsUpNoRequest) {
  start();
  ASSERT_EQ(prefill("r0", traceparent("01")), 200);
  collector_.receive();  // and does not answer
  for (int i = 1; i <= 5; ++i) {
    ASSERT_EQ(prefill(fmt::format("r{}", i), traceparent("01")), 200);
  }
  EXPECT_THAT(metrics(), HasSubstr("millrace_trace_spans_exported_total 0\n"));
  server_->shut_down();
  EXPECT_TRUE(server_->ended_within(std::chrono::seconds(30)));
}

TEST_F(ServerTracingTest, NeitherDoesOneThatIsNotThere) {
  start();
  collector_.close();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(prefill(fmt::format("r{}", i), traceparent("01")), 200);
  }
}

TEST_F(ServerTracingTest, MetricsTellWhatBecameOfSpans) {
  start();
  const std::string before = metrics();
  for (const char* line : {"millrace_trace_spans_exported_total 0\n",
                           "millrace_trace_spans_dropped_total{reason=\"queue_full\"} 0\n",
                           "millrace_trace_export_failures_total 0\n"}) {
    EXPECT_THAT(before, HasSubstr(line));
  }
  ASSERT_EQ(prefill("r1"), 200);
  receive(4);
  release("r1");
  receive(1);  // sent once the answer to the first has been read
  EXPECT_THAT(metrics(), ContainsRegex("millrace_trace_spans_exported_total [45]\n"));
}

TEST(ServerWithoutTracing, LooksAtNoTrace) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  client.send_request("POST", "/v1/prefill", R"({"model":"tiny","prompt_token_ids":[1]})",
                      traceparent("01"));
  group.serve(group.receive_request());
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(http_call(server.http_port(), "GET", "/metrics").body.find("millrace_trace_"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::coordinator
