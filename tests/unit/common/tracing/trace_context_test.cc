// SPDX-License-Identifier: Apache-2.0
// Examples are those of https://www.w3.org/TR/trace-context/.
#include "common/tracing/trace_context.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace::tracing {
namespace {

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kSpanId = "00f067aa0ba902b7";
const std::string kGiven = "00-" + kTraceId + "-" + kSpanId + "-01";

TEST(TraceContext, OfTheSpecificationsExampleIsRead) {
  const auto context = parse_traceparent(kGiven);
  ASSERT_TRUE(context);
  EXPECT_EQ(*context, (TraceContext{.trace_id = kTraceId, .span_id = kSpanId, .sampled = true}));
  EXPECT_EQ(format_traceparent(*context), kGiven);
}

TEST(TraceContext, OnlyTheLastFlagSaysWhetherItIsSampled) {
  const auto flags = [](const std::string& two) {
    return parse_traceparent("00-" + kTraceId + "-" + kSpanId + "-" + two);
  };
  for (const char* sampled : {"01", "03", "ff", "09"}) EXPECT_TRUE(flags(sampled)->sampled);
  for (const char* not_sampled : {"00", "02", "fe"}) EXPECT_FALSE(flags(not_sampled)->sampled);
  EXPECT_EQ(format_traceparent(*flags("02")), "00-" + kTraceId + "-" + kSpanId + "-00");
}

TEST(TraceContext, WhatTheSpecificationForbidsIsIgnored) {
  const std::string ids = kTraceId + "-" + kSpanId;
  for (const std::string& text : {
           std::string(), std::string("00"),
           "ff-" + ids + "-01",                                       // the forbidden version
           "0G-" + ids + "-01",                                       //
           "00-" + std::string(32, '0') + "-" + kSpanId + "-01",      // all zeros
           "00-" + kTraceId + "-" + std::string(16, '0') + "-01",     //
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpanId + "-01",  // upper case
           "00-" + kTraceId + "-00F067AA0BA902B7-01",                 //
           "00-" + kTraceId.substr(1) + "-" + kSpanId + "-011",       // too short
           "00-" + kTraceId + "a-" + kSpanId.substr(1) + "-01",       // of other lengths
           "00-" + ids + "-0",                                        //
           "00-" + ids + "-0x",                                       //
           "00-" + ids + "-0A",                                       //
           "00_" + ids + "-01",                                       //
           "00-" + ids + "_01",                                       //
           kGiven + "-what-the-future-will-be-like",                  // more than version 0 has
           kGiven + " ",                                              //
           " " + kGiven,                                              //
       }) {
    EXPECT_FALSE(parse_traceparent(text)) << text;
  }
}

TEST(TraceContext, OfALaterVersionTheKnownFieldsCount) {
  const std::string later = "cc-" + kTraceId + "-" + kSpanId + "-01";
  for (const char* more : {"", "-what-the-future-will-be-like", "-"}) {
    const auto context = parse_traceparent(later + more);
    ASSERT_TRUE(context) << more;
    EXPECT_EQ(context->trace_id, kTraceId);
    EXPECT_TRUE(context->sampled);
  }
  EXPECT_FALSE(parse_traceparent(later + ".what-the-future-will-not-be-like"));
}

TEST(TraceContext, NewIdsCanBeReadAndAreNeverTheSame) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const TraceContext made{
        .trace_id = make_trace_id(), .span_id = make_span_id(), .sampled = true};
    EXPECT_EQ(parse_traceparent(format_traceparent(made)), made);
    EXPECT_TRUE(seen.insert(made.trace_id).second);
    EXPECT_TRUE(seen.insert(made.span_id).second);
  }
}

TEST(TraceContext, AShareOfAllTracesIsThatOfTheirRandomBits) {
  const auto id = [](const std::string& random) { return std::string(18, 'a') + random; };
  const std::string least(14, '0'), most(14, 'f'), half = "8" + std::string(13, '0');
  for (const auto& random : {least, half, most}) {
    EXPECT_TRUE(is_in_share(id(random), 1)) << random;
    EXPECT_FALSE(is_in_share(id(random), 0)) << random;
  }
  EXPECT_TRUE(is_in_share(id(half), 0.5));
  EXPECT_FALSE(is_in_share(id("7" + std::string(13, 'f')), 0.5));
  int chosen = 0;
  for (int i = 0; i < 10'000; ++i) chosen += is_in_share(make_trace_id(), 0.3) ? 1 : 0;
  EXPECT_NEAR(chosen, 3000, 300);  // more than six standard deviations
}

}  // namespace
}  // namespace millrace::tracing
