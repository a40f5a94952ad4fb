// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/otlp_exporter.h"

#include <gmock/gmock.h>

#include "tests/support/otlp_receiver.h"

namespace millrace::tracing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OtlpReceiver;

class OtlpExporterTest : public ::testing::Test {
 protected:
  // No time limit ends a test of these: what happens, happens because of what the receiver does.
  OtlpExporterTest() {
    settings_.endpoint = OtlpEndpoint::parse(url()).value();
    settings_.sender = {.service = "s", .instance = "i", .version = "1"};
    settings_.batch_time = milliseconds(0);
    settings_.timeout = hours(1);
    settings_.first_pause = milliseconds(1);
    settings_.longest_pause = milliseconds(1);
    settings_.last_time = hours(1);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(receiver_.port()); }
  void start() { exporter_.emplace(settings_, registry_); }
  void stop() { exporter_.reset(); }
  void add(const std::vector<std::string>& names) {
    std::vector<Span> spans;
    for (const std::string& name : names) {
      Span span;
      span.trace_id = make_id(32);
      span.span_id = make_id(16);
      span.name = name;
      spans.push_back(std::move(span));
    }
    exporter_->add(std::move(spans));
  }
  // The names of the spans in the next request.
  std::vector<std::string> receive() {
    std::vector<std::string> names;
    for (const auto& span : testing::received_spans(receiver_.receive().body)) {
      names.push_back(span.name);
    }
    return names;
  }
  // After stop(), when nothing changes any more.
  void expect_counts(int exported, const std::map<std::string, int>& dropped) {
    const std::string text = registry_.text();
    EXPECT_THAT(text, HasSubstr("millrace_trace_spans_exported_total " + std::to_string(exported)));
    for (const char* reason : {"queue_full", "rejected", "shutdown"}) {
      const auto found = dropped.find(reason);
      EXPECT_THAT(text,
                  HasSubstr(std::string("millrace_trace_spans_dropped_total{reason=\"") + reason +
                            "\"} " + std::to_string(found == dropped.end() ? 0 : found->second)));
    }
  }

  OtlpReceiver receiver_;
  metrics::Registry registry_;
  OtlpSettings settings_;
  std::optional<OtlpExporter> exporter_;

 private:
  static std::string make_id(size_t chars) { return std::string(chars, 'a'); }
};

TEST_F(OtlpExporterTest, PostsSpansAsJson) {
  start();
  add({"a", "b"});
  const auto request = receiver_.receive();
  EXPECT_EQ(request.line, "POST /v1/traces HTTP/1.1");
  EXPECT_EQ(request.headers.at("content-type"), "application/json");
  EXPECT_EQ(request.headers.at("host"), url().substr(7));
  const auto spans = testing::received_spans(request.body);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "a");
  EXPECT_EQ(spans[0].service, "s");
  receiver_.answer(200);
  stop();
  expect_counts(2, {});
}

TEST_F(OtlpExporterTest, WhatDoesNotFitIsDroppedWholeAndCounted) {
  settings_.batch_spans = 1;
  settings_.max_queued_spans = 3;
  start();
  add({"sent"});
  EXPECT_THAT(receive(), ElementsAre("sent"));  // and is not answered: from here on, spans wait
  add({"a", "b"});
  add({"c", "d"});  // there is room for one
  add({"e"});
  add({"f"});
  EXPECT_THAT(registry_.text(),
              HasSubstr("millrace_trace_spans_dropped_total{reason=\"queue_full\"} 3"));
  receiver_.answer(200);
  for (const char* name : {"a", "b", "e"}) {
    EXPECT_THAT(receive(), ElementsAre(name));
    receiver_.answer(200);
  }
  stop();
  expect_counts(4, {{"queue_full", 3}});
}

TEST_F(OtlpExporterTest, ABatchThatMayBeTakenLaterIsSentAgain) {
  start();
  add({"a"});
  for (const int status : {429, 502, 503, 504}) {
    EXPECT_THAT(receive(), ElementsAre("a"));
    receiver_.answer(status);
  }
  EXPECT_THAT(receive(), ElementsAre("a"));
  receiver_.answer(200);
  stop();
  expect_counts(1, {});
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_trace_export_failures_total 4"));
}

TEST_F(OtlpExporterTest, ABatchThatIsRefusedIsDroppedAndTheNextOneSent) {
  start();
  add({"a", "b"});
  EXPECT_THAT(receive(), ElementsAre("a", "b"));
  add({"c"});
  receiver_.answer(400);
  EXPECT_THAT(receive(), ElementsAre("c"));
  receiver_.answer(200);
  stop();
  expect_counts(1, {{"rejected", 2}});
}

TEST_F(OtlpExporterTest, WhatACollectorLeavesOutIsCounted) {
  start();
  add({"a", "b", "c"});
  EXPECT_THAT(receive(), ElementsAre("a", "b", "c"));
  receiver_.answer(200, R"({"partialSuccess": {"rejectedSpans": "1"}})");
  stop();
  expect_counts(2, {{"rejected", 1}});
}

TEST_F(OtlpExporterTest, WhatIsLeftAtTheEndIsSent) {
  settings_.batch_time = hours(1);
  start();
  add({"a"});
  std::thread ending([this] { stop(); });
  EXPECT_THAT(receive(), ElementsAre("a"));
  receiver_.answer(200);
  ending.join();
  expect_counts(1, {});
}

TEST_F(OtlpExporterTest, ACollectorThatHangsDoesNotHoldUpTheEnd) {
  settings_.batch_spans = 1;
  settings_.last_time = milliseconds(1);
  start();
  add({"a", "b", "c"});
  EXPECT_THAT(receive(), ElementsAre("a"));
  stop();
  expect_counts(0, {{"shutdown", 3}});
}

TEST_F(OtlpExporterTest, NeitherDoesOneThatIsNotThere) {
  receiver_.close();
  start();
  add({"a", "b"});
  stop();
  expect_counts(0, {{"shutdown", 2}});
}

}  // namespace
}  // namespace millrace::tracing
