// The parts of millrace-client: what it reads and shows, and its exchange with a coordinator.
#include <gtest/gtest.h>

#include <future>

#include "client/http_client.h"
#include "client/progress_view.h"
#include "client/prompt_file.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::client {
namespace {

TEST(PromptFile, ReadsAnArrayOrAnObject) {
  const std::string expected("\1\0\0\0\0\1\0\0", 8);
  EXPECT_EQ(*prompt_from_json("[1, 256]"), expected);
  EXPECT_EQ(*prompt_from_json(R"({"id":"x","prompt_token_ids":[1,256]})"), expected);
}

TEST(PromptFile, RefusesAnythingElse) {
  for (const char* text : {"", "{}", "3", "[1,", "[-1]", "[2147483648]", "[1.5]", "[\"1\"]",
                           R"({"prompt_token_ids":3})"}) {
    EXPECT_FALSE(prompt_from_json(text).ok()) << text;
  }
  EXPECT_EQ(read_prompt("/nonexistent/prompt.json", 1).error().code, Errc::kNotFound);
}

TEST(ProgressView, DrawsABarOfConstantWidth) {
  EXPECT_EQ(ProgressView::bar(0, 4, 0, 0),
            "[----------------------------------------]   0/4 layers  density 0.000  0.0 s");
  EXPECT_EQ(ProgressView::bar(3, 4, 0.125, 1.25),
            "[##############################----------]   3/4 layers  density 0.125  1.2 s");
  EXPECT_EQ(ProgressView::bar(4, 4, 1, 2),
            "[########################################]   4/4 layers  density 1.000  2.0 s");
}

TEST(HttpClient, FollowsAStreamToItsEnd) {
  coordinator::RunningServer server;
  coordinator::FakeGroup group(server.group_port());
  group.join(coordinator::FakeGroup::description("group-0", "g0"));
  const HttpClient client("127.0.0.1", std::to_string(server.http_port()));
  std::string names;
  auto call = std::async(std::launch::async, [&] {
    return client.call({"POST", "/v1/prefill?model=tiny&stream=true", "application/octet-stream",
                        std::string("\1\0\0\0", 4)},
                       std::chrono::seconds(20),
                       [&](const protocol::SseEvent& event) { names += event.name + " "; });
  });
  group.serve(group.receive_request());
  const auto answer = call.get();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(names, "queued started layer layer layer done ");
}

TEST(HttpClient, ShowsAnEventWhenItComesAndNotWhenTheStreamEnds) {
  coordinator::RunningServer server;
  coordinator::FakeGroup group(server.group_port());
  group.join(coordinator::FakeGroup::description("group-0", "g0"));
  const HttpClient client("127.0.0.1", std::to_string(server.http_port()));
  std::promise<void> started;
  auto call = std::async(std::launch::async, [&] {
    return client.call({"POST", "/v1/prefill?model=tiny&stream=true", "application/octet-stream",
                        std::string("\1\0\0\0", 4)},
                       std::chrono::seconds(20), [&](const protocol::SseEvent& event) {
                         if (event.name == "started") started.set_value();
                       });
  });
  const auto request = group.receive_request();
  group.send_started(request.request_id());
  EXPECT_EQ(started.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  group.send_done(request.request_id());
  EXPECT_TRUE(call.get().ok());
}

TEST(HttpClient, HandsOutAnErrorAnswerAndAMissingServer) {
  uint16_t port = 0;
  {
    coordinator::RunningServer server;
    port = server.http_port();
    const HttpClient client("127.0.0.1", std::to_string(port));
    const auto answer = client.call({"GET", "/ready", "", ""}, std::chrono::seconds(20));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->status, 503);
    EXPECT_NE(answer->body.find("no worker group is ready"), std::string::npos);
  }
  const HttpClient client("127.0.0.1", std::to_string(port));
  const auto answer = client.call({"GET", "/ready", "", ""}, std::chrono::seconds(20));
  EXPECT_EQ(answer.error().code, Errc::kUnavailable);
}

}  // namespace
}  // namespace millrace::client
