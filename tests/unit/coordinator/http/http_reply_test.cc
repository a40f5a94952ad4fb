// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_reply.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

namespace http = boost::beast::http;

TEST(HttpReply, HasTheIdAndTheLengthOfItsBody) {
  const auto response = to_response({.body = "{}"}, {.id = "r1"}, /*keep_alive=*/true);
  EXPECT_EQ(response.result_int(), 200u);
  EXPECT_EQ(response["X-Request-Id"], "r1");
  EXPECT_EQ(response[http::field::content_type], "application/json");
  EXPECT_EQ(response[http::field::content_length], "2");
  EXPECT_TRUE(response.keep_alive());
  EXPECT_EQ(response.count(http::field::retry_after), 0u);
  EXPECT_EQ(response.count(http::field::allow), 0u);
}

TEST(HttpReply, HasTheClientsIdWhereTheRequestGotAnother) {
  const auto response = to_response({}, {.id = "req-1", .client_id = "trace"}, true);
  EXPECT_EQ(response["X-Request-Id"], "req-1");
  EXPECT_EQ(response["X-Client-Request-Id"], "trace");
}

TEST(HttpReply, SaysThatBodiesAreNotToBeCompressed) {
  const ApiError why(Error(Errc::kUnsupported, "gzip"), kUnsupportedMedia);
  const auto response = to_response(error_reply(why, ""), {}, true);
  EXPECT_EQ(response.result_int(), 415u);
  EXPECT_EQ(response[http::field::accept_encoding], "identity");
}

TEST(HttpReply, WhatIsForViewersIsNeitherStoredNorReadByOtherSites) {
  const auto page = to_response({.policy = "default-src 'none'", .for_viewers = true}, {}, true);
  EXPECT_EQ(page["Content-Security-Policy"], "default-src 'none'");
  EXPECT_EQ(page[http::field::cache_control], "no-store");
  EXPECT_EQ(page["X-Content-Type-Options"], "nosniff");
  EXPECT_EQ(page["Referrer-Policy"], "no-referrer");
  EXPECT_EQ(page["Cross-Origin-Resource-Policy"], "same-origin");
  const auto other = to_response({}, {}, true);
  EXPECT_EQ(other.count("Content-Security-Policy"), 0u);
  EXPECT_EQ(other.count(http::field::cache_control), 0u);
}

TEST(HttpReply, ToHeadHasALengthAndNoBody) {
  const auto response = to_response({.body = "12345"}, {.is_head = true}, /*keep_alive=*/false);
  EXPECT_EQ(response[http::field::content_length], "5");
  EXPECT_EQ(response.body(), "");
  EXPECT_FALSE(response.keep_alive());
  EXPECT_EQ(response.count("X-Request-Id"), 0u);
}

TEST(HttpReply, AnErrorSaysWhenToTryAgain) {
  Refusal why(Error(Errc::kExhausted, "full"), "prompt_token_ids");
  why.retry_after_s = 42;
  const HttpReply reply = error_reply(why, "r1");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.body, R"({"error":{"message":"full","type":"exhausted","code":429,)"
                        R"("param":"prompt_token_ids","retriable":true},"request_id":"r1"})");
  const auto response = to_response(reply, {}, /*keep_alive=*/true);
  EXPECT_EQ(response[http::field::retry_after], "42");
}

TEST(HttpReply, WhatIsNoUseToRepeatHasNoRetryAfter) {
  Refusal why(Error(Errc::kInvalidArgument, "no"));
  why.retry_after_s = 42;
  EXPECT_EQ(error_reply(why, "").retry_after_s, 0);
  EXPECT_EQ(error_reply(Error(Errc::kUnavailable, "later"), "").retry_after_s, 5);
}

TEST(HttpReply, AStatusOfHttpItselfOutranksTheCode) {
  const HttpReply reply = error_reply(ApiError(Error(Errc::kInvalidArgument, "no"), 405), "");
  EXPECT_EQ(reply.status, 405);
  EXPECT_NE(reply.body.find(R"("code":405)"), std::string::npos);
}

TEST(HttpReply, AClientThatClosedItsRequestHasAStatusWithAName) {
  const auto response = to_response({.status = 499}, {}, /*keep_alive=*/true);
  EXPECT_EQ(response.reason(), "Client Closed Request");
}

}  // namespace
}  // namespace millrace::coordinator
