// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/service_reply.h"

#include <gmock/gmock.h>

#include "tests/support/fake_clock.h"
#include "tests/unit/coordinator/schedule/recording_link.h"

namespace millrace::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServiceReplyTest : public ::testing::Test {
 protected:
  HttpReply reply(std::string_view method, std::string_view target) {
    return service_reply(find_route(method, target), scheduler_, metrics_, tokenizers_, {}, "r1");
  }

  millrace::testing::FakeClock clock_;
  metrics::Registry registry_;
  CoordinatorMetrics metrics_{registry_};
  ModelTokenizers tokenizers_{registry_};
  Scheduler scheduler_{{}, clock_, metrics_, [](const Request&) {}};
  RecordingLink link_;
};

TEST_F(ServiceReplyTest, IsReadyWithAGroupAndNotWhileShuttingDown) {
  EXPECT_EQ(reply("GET", "/ready").status, 503);
  EXPECT_THAT(reply("GET", "/ready").body, HasSubstr("no worker group is ready"));
  ASSERT_TRUE(scheduler_.add_group(group_description("g0", "group-0"), link_).ok());
  EXPECT_EQ(reply("GET", "/ready").status, 200);
  scheduler_.drain();
  EXPECT_THAT(reply("GET", "/ready").body, HasSubstr("the coordinator is shutting down"));
  EXPECT_EQ(reply("GET", "/health").status, 200);
}

TEST_F(ServiceReplyTest, ListsTheModelsOfTheGroups) {
  EXPECT_EQ(reply("GET", "/v1/models").body, R"({"object":"list","data":[]})");
  ASSERT_TRUE(scheduler_.add_group(group_description("g0", "group-0"), link_).ok());
  EXPECT_THAT(reply("GET", "/v1/models").body, HasSubstr(R"("id":"tiny")"));
}

TEST_F(ServiceReplyTest, AModelIsFoundByItsName) {
  auto description = group_description("g0", "group-0");
  description.mutable_model()->set_name("org/tiny");
  ASSERT_TRUE(scheduler_.add_group(description, link_).ok());
  for (const char* path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny"}) {
    EXPECT_EQ(reply("GET", path).status, 200) << path;
    EXPECT_THAT(reply("GET", path).body, StartsWith(R"({"id":"org/tiny","object":"model",)"));
  }
  const HttpReply other = reply("GET", "/v1/models/tiny");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.body, HasSubstr(R"("param":"model")"));
}

TEST_F(ServiceReplyTest, MetricsAreText) {
  EXPECT_EQ(reply("GET", "/metrics").content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(reply("GET", "/metrics").body, HasSubstr("millrace_queued_requests 0"));
}

TEST_F(ServiceReplyTest, ThePageComesWithAPolicyThatLetsItsOwnScriptRun) {
  const HttpReply page = reply("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page.body, StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page.policy, StartsWith("default-src 'none'; script-src 'sha256-"));
  EXPECT_TRUE(page.for_viewers);
}

TEST_F(ServiceReplyTest, TheOverviewIsJsonThatNobodyStores) {
  const HttpReply overview = reply("GET", "/overview");
  EXPECT_EQ(overview.content_type, "application/json");
  EXPECT_THAT(overview.body, StartsWith(R"({"version":)"));
  EXPECT_TRUE(overview.for_viewers);
  EXPECT_EQ(reply("GET", "/overview/unknown").status, 404);
}

TEST_F(ServiceReplyTest, AWrongMethodSaysWhatThePathTakes) {
  const HttpReply answer = reply("PUT", "/v1/models");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.allow, "GET, HEAD");
  EXPECT_THAT(answer.body, HasSubstr("does not accept PUT; it accepts GET, HEAD"));
}

TEST_F(ServiceReplyTest, APathThatIsNotThereIsNotFound) {
  const HttpReply answer = reply("GET", "/v2");
  EXPECT_EQ(answer.status, 404);
  EXPECT_THAT(answer.body, HasSubstr(R"("request_id":"r1")"));
}

}  // namespace
}  // namespace millrace::coordinator
