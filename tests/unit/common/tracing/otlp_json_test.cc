// SPDX-License-Identifier: Apache-2.0
// The expected text is what the specification says of OTLP's JSON
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding), with the fields' names from
// opentelemetry/proto/trace/v1/trace.proto.
#include "common/tracing/otlp_json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <limits>

namespace millrace::tracing {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kStart{std::chrono::hours(1)};
// 2024-09-10 12:34:56 UTC, when the steady clock had run for an hour and ten seconds.
const ClockPair kClocks{.steady = kStart + seconds(10),
                        .wall = std::chrono::system_clock::time_point(seconds(1725971696))};
const OtlpSender kSender{
    .service = "millrace-coordinator", .instance = "host:8000", .version = "1.2.3"};

Span example() {
  Span span;
  span.trace_id = "5b8efff798038103d269b633813fc60c";
  span.span_id = "eee19b7ec3c1b174";
  span.parent_id = "eee19b7ec3c1b173";
  span.name = "POST /v1/prefill";
  span.kind = Span::Kind::kServer;
  span.begin = kStart;
  span.end = kStart + milliseconds(1500);
  span.attributes = {{"a.text", std::string("x\"y")},
                     {"a.flag", true},
                     {"a.whole", int64_t{1} << 60},
                     {"a.real", 0.25}};
  span.events = {{"layer", kStart + milliseconds(250), {{"millrace.layer", int64_t{0}}}}};
  return span;
}

TEST(OtlpJson, HasTheFieldsOfTheSpecification) {
  const std::vector<Span> spans{example()};
  EXPECT_EQ(json::parse(otlp_json(spans, kSender, kClocks)), json::parse(R"({"resourceSpans": [{
    "resource": {"attributes": [
      {"key": "service.name", "value": {"stringValue": "millrace-coordinator"}},
      {"key": "service.instance.id", "value": {"stringValue": "host:8000"}},
      {"key": "service.version", "value": {"stringValue": "1.2.3"}}]},
    "scopeSpans": [{
      "scope": {"name": "millrace", "version": "1.2.3"},
      "spans": [{
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "parentSpanId": "eee19b7ec3c1b173",
        "name": "POST /v1/prefill",
        "kind": 2,
        "startTimeUnixNano": "1725971686000000000",
        "endTimeUnixNano": "1725971687500000000",
        "attributes": [
          {"key": "a.text", "value": {"stringValue": "x\"y"}},
          {"key": "a.flag", "value": {"boolValue": true}},
          {"key": "a.whole", "value": {"intValue": "1152921504606846976"}},
          {"key": "a.real", "value": {"doubleValue": 0.25}}],
        "events": [{
          "timeUnixNano": "1725971686250000000",
          "name": "layer",
          "attributes": [{"key": "millrace.layer", "value": {"intValue": "0"}}]}]
      }]}]}]})"));
}

TEST(OtlpJson, WhatASpanDoesNotHaveIsLeftOut) {
  Span span = example();
  span.parent_id.clear();
  span.events.clear();
  span.failed = true;
  const auto body = json::parse(otlp_json(std::vector{span}, kSender, kClocks));
  const auto& out =
      body.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans").at(0).as_object();
  EXPECT_FALSE(out.contains("parentSpanId"));
  EXPECT_FALSE(out.contains("events"));
  EXPECT_EQ(out.at("status"), json::parse(R"({"code": 2})"));
}

TEST(OtlpJson, SpansOfOthersAreUnderTheirNames) {
  Span other = example();
  other.service = "millrace-worker";
  other.instance = "group-0";
  const std::vector<Span> spans{example(), other, example()};
  const auto body = json::parse(otlp_json(spans, kSender, kClocks));
  std::map<std::string, size_t> counts;
  for (const auto& resource : body.at("resourceSpans").as_array()) {
    const auto& attributes = resource.at("resource").at("attributes");
    const auto name = [&](size_t at) {
      return std::string(attributes.at(at).at("value").at("stringValue").as_string());
    };
    counts[name(0) + " " + name(1)] = resource.at("scopeSpans").at(0).at("spans").as_array().size();
  }
  EXPECT_EQ(counts, (std::map<std::string, size_t>{{"millrace-coordinator host:8000", 2},
                                                   {"millrace-worker group-0", 1}}));
}

TEST(OtlpJson, NumbersThatJsonDoesNotHaveAreZero) {
  Span span = example();
  span.attributes = {{"a", std::numeric_limits<double>::quiet_NaN()},
                     {"b", std::numeric_limits<double>::infinity()}};
  const auto body = json::parse(otlp_json(std::vector{span}, kSender, kClocks));
  const auto& out = body.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans").at(0);
  for (const auto& attribute : out.at("attributes").as_array()) {
    EXPECT_EQ(attribute.at("value").at("doubleValue").to_number<double>(), 0);
  }
}

TEST(OtlpJson, AnAnswerSaysHowManySpansWereRejected) {
  EXPECT_EQ(rejected_spans(R"({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "x"}})"),
            3);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess": {"rejectedSpans": 3}})"), 3);
  for (const char* nothing :
       {"", "{}", "[]", "null", "<html>", R"({"partialSuccess": {}})", R"({"partialSuccess": 1})",
        R"({"partialSuccess": {"rejectedSpans": true}})"}) {
    EXPECT_EQ(rejected_spans(nothing), 0) << nothing;
  }
}

}  // namespace
}  // namespace millrace::tracing
