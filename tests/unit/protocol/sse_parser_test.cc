// SPDX-License-Identifier: Apache-2.0
#include "protocol/sse_parser.h"

#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

TEST(SseParser, FindsEventsHoweverTheBytesAreCut) {
  const std::string stream = ": ping\n\nevent: a\r\ndata: 1\n\ndata: x\ndata: y\n\nevent: late\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    SseParser parser;
    auto events = *parser.feed(stream.substr(0, cut));
    const auto rest = *parser.feed(stream.substr(cut));
    events.insert(events.end(), rest.begin(), rest.end());
    ASSERT_EQ(events.size(), 2u) << cut;
    EXPECT_EQ(events[0].name, "a");
    EXPECT_EQ(events[0].data, "1");
    EXPECT_EQ(events[1].name, "");
    EXPECT_EQ(events[1].data, "x\ny");
  }
}

TEST(SseParser, AnEventWithoutANameIsDataAlone) {
  EXPECT_EQ(to_text({"", "[DONE]"}), "data: [DONE]\n\n");
}

TEST(SseParser, ReadsWhatToTextWrites) {
  SseParser parser;
  const auto events =
      *parser.feed(to_text({"layer", "{}"}) + to_text({"done", "[1]"}) + to_text({"", "[DONE]"}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].name, "layer");
  EXPECT_EQ(events[1].data, "[1]");
  EXPECT_EQ(events[2].name, "");
  EXPECT_EQ(events[2].data, "[DONE]");
}

}  // namespace
}  // namespace millrace::protocol
