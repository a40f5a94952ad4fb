// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/route.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

TEST(Route, FindsEveryEndpoint) {
  EXPECT_EQ(find_route("POST", "/v1/prefill").endpoint, Endpoint::kPrefill);
  EXPECT_EQ(find_route("POST", "/v1/prefill:forecast").endpoint, Endpoint::kForecast);
  EXPECT_EQ(find_route("POST", "/v1/completions").endpoint, Endpoint::kCompletion);
  EXPECT_EQ(find_route("POST", "/v1/chat/completions").endpoint, Endpoint::kChat);
  EXPECT_EQ(find_route("POST", "/inference/v1/generate").endpoint, Endpoint::kGenerate);
  EXPECT_EQ(find_route("GET", "/v1/prefill/r1").endpoint, Endpoint::kStatus);
  EXPECT_EQ(find_route("DELETE", "/v1/prefill/r1").endpoint, Endpoint::kCancel);
  EXPECT_EQ(find_route("GET", "/v1/prefill/r1/events").endpoint, Endpoint::kEvents);
  EXPECT_EQ(find_route("POST", "/v1/prefill/r1/lease:renew").endpoint, Endpoint::kLeaseRenew);
  EXPECT_EQ(find_route("POST", "/v1/prefill/r1/lease:release").endpoint, Endpoint::kLeaseRelease);
  EXPECT_EQ(find_route("GET", "/v1/models").endpoint, Endpoint::kModels);
  EXPECT_EQ(find_route("GET", "/v1/models/tiny").endpoint, Endpoint::kModel);
  EXPECT_EQ(find_route("GET", "/health").endpoint, Endpoint::kHealth);
  EXPECT_EQ(find_route("GET", "/ready").endpoint, Endpoint::kReady);
  EXPECT_EQ(find_route("GET", "/metrics").endpoint, Endpoint::kMetrics);
  EXPECT_EQ(find_route("GET", "/version").endpoint, Endpoint::kVersion);
  EXPECT_EQ(find_route("GET", "/").endpoint, Endpoint::kPage);
  EXPECT_EQ(find_route("GET", "/overview").endpoint, Endpoint::kOverview);
  EXPECT_EQ(find_route("GET", "/overview/r1").endpoint, Endpoint::kLayers);
}

TEST(Route, TakesIdAndQueryApart) {
  const Route route = find_route("GET", "/v1/prefill/a.b:c?x=1&y=2");
  EXPECT_EQ(route.id, "a.b:c");
  EXPECT_EQ(route.query, "x=1&y=2");
}

TEST(Route, AnIdMayBePercentEncoded) {
  EXPECT_EQ(find_route("GET", "/v1/prefill/a%3Ab").id, "a:b");
  EXPECT_EQ(find_route("POST", "/v1/prefill/a%3ab/lease:renew").id, "a:b");
  for (const char* path : {"/v1/prefill/a%2Fb", "/v1/prefill/a+b", "/v1/prefill/a%3"}) {
    EXPECT_EQ(find_route("GET", path).endpoint, Endpoint::kNone) << path;
  }
}

// OpenAI's client writes '/' as %2F in newer versions, and as it is in older ones.
TEST(Route, TheNameOfAModelMayHaveSlashes) {
  for (const char* path : {"/v1/models/org/name+1", "/v1/models/org%2Fname+1"}) {
    const Route route = find_route("GET", path);
    EXPECT_EQ(route.endpoint, Endpoint::kModel) << path;
    EXPECT_EQ(route.id, "org/name+1");
  }
  EXPECT_EQ(find_route("GET", "/v1/models/").endpoint, Endpoint::kNone);
  EXPECT_EQ(find_route("DELETE", "/v1/models/org/name").allow, "GET, HEAD");
}

TEST(Route, TellsAWrongMethodFromAnUnknownPath) {
  EXPECT_EQ(find_route("GET", "/v1/prefill").endpoint, Endpoint::kWrongMethod);
  EXPECT_EQ(find_route("POST", "/health").endpoint, Endpoint::kWrongMethod);
  EXPECT_EQ(find_route("GET", "/v1/prefill/").endpoint, Endpoint::kNone);
  EXPECT_EQ(find_route("GET", "/v1/prefill/a/b").endpoint, Endpoint::kNone);
  EXPECT_EQ(find_route("GET", "/overview/").endpoint, Endpoint::kNone);
  EXPECT_EQ(find_route("GET", "").endpoint, Endpoint::kNone);
}

TEST(Route, WhatTakesGetTakesHead) {
  EXPECT_EQ(find_route("HEAD", "/health").endpoint, Endpoint::kHealth);
  EXPECT_EQ(find_route("HEAD", "/v1/prefill/r1").endpoint, Endpoint::kStatus);
  EXPECT_EQ(find_route("HEAD", "/v1/prefill").endpoint, Endpoint::kWrongMethod);
}

TEST(Route, AWrongMethodComesWithThoseThatAreRight) {
  EXPECT_EQ(find_route("GET", "/v1/prefill?x=1").allow, "POST");
  EXPECT_EQ(find_route("GET", "/v1/prefill:forecast").allow, "POST");
  EXPECT_EQ(find_route("POST", "/v1/prefill/r1/events").allow, "GET, HEAD");
  EXPECT_EQ(find_route("PUT", "/v1/prefill/r1").allow, "GET, HEAD, DELETE");
  EXPECT_EQ(find_route("POST", "/ready").allow, "GET, HEAD");
  EXPECT_EQ(find_route("GET", "/v1/prefill/r1/lease:renew").allow, "POST");
}

}  // namespace
}  // namespace millrace::coordinator
