// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/otlp_endpoint.h"

#include <gtest/gtest.h>

namespace millrace::tracing {
namespace {

TEST(OtlpEndpoint, IsAUrlToWhichTheSignalsPathIsAdded) {
  const std::pair<const char*, const char*> examples[] = {
      {"http://collector:4318", "http://collector:4318/v1/traces"},
      {"http://collector", "http://collector:4318/v1/traces"},
      {"http://collector/", "http://collector:4318/v1/traces"},
      {"https://10.0.0.1:443/otlp/", "https://10.0.0.1:443/otlp/v1/traces"},
      {"http://[::1]", "http://[::1]:4318/v1/traces"},
      {"http://[::1]:80", "http://[::1]:80/v1/traces"},
  };
  for (const auto& [given, meant] : examples) {
    const auto endpoint = OtlpEndpoint::parse(given);
    ASSERT_TRUE(endpoint.ok()) << given;
    EXPECT_EQ(endpoint->to_string(), meant);
  }
}

TEST(OtlpEndpoint, AnythingElseIsRefused) {
  for (const char* text :
       {"", "collector:4318", "grpc://collector:4317", "http://", "http://:4318", "http://a:0",
        "http://a:70000", "http://a:b", "http://a/b?c", "http://a/b#c", "http://a/ b",
        "http://a/\r\nX: y", "http://[::1", "http://\xc3\xa4"}) {
    const auto endpoint = OtlpEndpoint::parse(text);
    ASSERT_FALSE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint.error().code, Errc::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::tracing
