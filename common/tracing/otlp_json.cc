// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/otlp_json.h"

#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

namespace millrace::tracing {

namespace json = boost::json;

namespace {

constexpr int kStatusError = 2;

// 64-bit integers are strings in protobuf's JSON.
json::object value_json(const Attribute& attribute) {
  struct {
    json::object operator()(const std::string& text) const { return {{"stringValue", text}}; }
    json::object operator()(bool yes) const { return {{"boolValue", yes}}; }
    json::object operator()(int64_t number) const { return {{"intValue", std::to_string(number)}}; }
    json::object operator()(double number) const {
      // JSON has no other numbers.
      return {{"doubleValue", std::isfinite(number) ? number : 0.0}};
    }
  } const of;
  return std::visit(of, attribute.value);
}

json::array attributes_json(const Attributes& attributes) {
  json::array all;
  for (const Attribute& one : attributes) {
    all.push_back(json::object{{"key", one.name}, {"value", value_json(one)}});
  }
  return all;
}

std::string unix_nanos(TimePoint at, const ClockPair& clocks) {
  const auto since = clocks.wall.time_since_epoch() + (at - clocks.steady);
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

json::object span_json(const Span& span, const ClockPair& clocks) {
  json::object out{{"traceId", span.trace_id},
                   {"spanId", span.span_id},
                   {"name", span.name},
                   {"kind", static_cast<int>(span.kind)},
                   {"startTimeUnixNano", unix_nanos(span.begin, clocks)},
                   {"endTimeUnixNano", unix_nanos(span.end, clocks)},
                   {"attributes", attributes_json(span.attributes)}};
  if (!span.parent_id.empty()) out["parentSpanId"] = span.parent_id;
  if (!span.events.empty()) {
    json::array events;
    for (const SpanEvent& event : span.events) {
      events.push_back(json::object{{"timeUnixNano", unix_nanos(event.at, clocks)},
                                    {"name", event.name},
                                    {"attributes", attributes_json(event.attributes)}});
    }
    out["events"] = std::move(events);
  }
  if (span.failed) out["status"] = json::object{{"code", kStatusError}};
  return out;
}

}  // namespace

ClockPair ClockPair::now() {
  return {Clock::steady().now(), std::chrono::system_clock::now()};
}

std::string otlp_json(std::span<const Span> spans, const OtlpSender& sender,
                      const ClockPair& clocks) {
  std::map<std::pair<std::string, std::string>, json::array> by_source;
  for (const Span& span : spans) {
    const bool own = span.service.empty();
    by_source[{own ? sender.service : span.service, own ? sender.instance : span.instance}]
        .push_back(span_json(span, clocks));
  }
  json::array resources;
  for (auto& [source, its_spans] : by_source) {
    const Attributes resource{{"service.name", source.first},
                              {"service.instance.id", source.second},
                              {"service.version", sender.version}};
    const json::object scope{{"name", "millrace"}, {"version", sender.version}};
    resources.push_back(json::object{
        {"resource", json::object{{"attributes", attributes_json(resource)}}},
        {"scopeSpans",
         json::array{json::object{{"scope", scope}, {"spans", std::move(its_spans)}}}}});
  }
  return json::serialize(json::object{{"resourceSpans", std::move(resources)}});
}

int64_t rejected_spans(std::string_view answer) {
  boost::system::error_code wrong;
  const json::value parsed = json::parse({answer.data(), answer.size()}, wrong);
  if (wrong) return 0;
  const auto* partial =
      parsed.is_object() ? parsed.as_object().if_contains("partialSuccess") : nullptr;
  const auto* count =
      partial && partial->is_object() ? partial->as_object().if_contains("rejectedSpans") : nullptr;
  if (count == nullptr) return 0;
  if (count->is_int64()) return count->as_int64();
  int64_t rejected = 0;
  if (const auto* text = count->if_string()) {
    std::from_chars(text->data(), text->data() + text->size(), rejected);
  }
  return rejected;
}

}  // namespace millrace::tracing
