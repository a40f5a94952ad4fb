// SPDX-License-Identifier: Apache-2.0
// Values in the header of a request: media types and queries.
#include <gtest/gtest.h>

#include "coordinator/api/api_error.h"
#include "coordinator/http/route.h"
#include "coordinator/text/http_text.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {
namespace {

TEST(MediaType, IsComparedWithoutCaseAndParameters) {
  for (const char* text : {"application/json", "Application/JSON", "application/json;charset=utf-8",
                           " application/json ; charset=\"utf-8\""}) {
    EXPECT_TRUE(is_media_type(text, "application/json")) << text;
  }
  for (const char* text : {"", ";", "application/jso", "application/jsonl", "json"}) {
    EXPECT_FALSE(is_media_type(text, "application/json")) << text;
  }
}

TEST(Query, BesideAJsonBodyItsFirstParameterIsBlamed) {
  for (const char* query : {"", "&", "&&"}) EXPECT_FALSE(refuse_query(query)) << query;
  EXPECT_EQ(refuse_query("stream=true&lease_ms=1")->field, "stream");
  EXPECT_EQ(refuse_query("a%20b")->field, "a b");
  EXPECT_EQ(ApiError(*refuse_query("%zz=1")).http_status(), 400);
}

TEST(Query, WhatIsEncodedReadsBack) {
  const std::string text = "a/b?c&d=e%f g+\xff";
  EXPECT_EQ(percent_encode(text), "a%2Fb%3Fc%26d%3De%25f%20g%2B%FF");
  EXPECT_EQ(*percent_decode(percent_encode(text)), text);
}

// In a path it is itself: the name of a model may have one.
TEST(Query, APlusIsABlankInAQueryAlone) {
  EXPECT_EQ(parse_query("a+b=c+d%2B")->front(), std::pair(std::string("a b"), std::string("c d+")));
  EXPECT_EQ(*percent_decode("a+b%20"), "a+b ");
}

}  // namespace
}  // namespace millrace::coordinator
