// SPDX-License-Identifier: Apache-2.0
#include "decode/decode_trace.h"

#include <gtest/gtest.h>

namespace millrace::decode {
namespace {

using std::chrono::milliseconds;
using tracing::Span;

const TimePoint kBegin{std::chrono::hours(1)};
const tracing::TraceContext kParent{
    .trace_id = "4bf92f3577b34da6a3ce929d0e0e4736", .span_id = "00f067aa0ba902b7", .sampled = true};

TEST(DecodeTrace, ThePullAndTheGenerationArePartsOfTheRun) {
  DecodeReport report;
  report.token_ids = {1, 2, 3};
  report.pull_began = kBegin + milliseconds(100);
  report.pulled.seconds = 0.5;
  report.pulled.bytes = 4096;
  report.generate_began = kBegin + milliseconds(600);
  report.generate_s = 0.25;
  const auto spans = decode_spans(kParent, kBegin, kBegin + milliseconds(900), report);
  ASSERT_EQ(spans.size(), 3u);
  const auto expect = [&](const Span& span, const std::string& name, const std::string& parent,
                          int begin_ms, int end_ms) {
    EXPECT_EQ(span.name, name);
    EXPECT_EQ(span.trace_id, kParent.trace_id);
    EXPECT_EQ(span.parent_id, parent);
    EXPECT_EQ(span.begin, kBegin + milliseconds(begin_ms));
    EXPECT_EQ(span.end, kBegin + milliseconds(end_ms));
    EXPECT_FALSE(span.failed);
  };
  expect(spans[0], "decode", kParent.span_id, 0, 900);
  expect(spans[1], "pull", spans[0].span_id, 100, 600);
  expect(spans[2], "generate", spans[0].span_id, 600, 850);
  const tracing::Attribute bytes{"millrace.pulled_bytes", int64_t{4096}};
  EXPECT_EQ(std::ranges::count(spans[1].attributes, bytes), 1);
}

TEST(DecodeTrace, ARunThatFailedHasItsCodeAndNoText) {
  const Result<DecodeReport> report = Error(Errc::kCorrupt, "page 5 of request 'r1'");
  const auto spans = decode_spans(kParent, kBegin, kBegin + milliseconds(900), report);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_TRUE(spans[0].failed);
  EXPECT_EQ(spans[0].attributes, (tracing::Attributes{{"error.type", std::string("corrupt")}}));
}

}  // namespace
}  // namespace millrace::decode
