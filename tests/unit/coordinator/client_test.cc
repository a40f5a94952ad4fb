// SPDX-License-Identifier: Apache-2.0
// The parts of millrace-client: what it reads and shows, and its exchange with a coordinator.
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "client/http_client.h"
#include "client/progress_view.h"
#include "client/prompt_file.h"
#include "client/token_source.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::client {
namespace {

ServerAddress address(uint16_t port) {
  return {.host = "127.0.0.1", .port = std::to_string(port)};
}

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

TEST(PromptFile, SaysWhichLinesThereAreAndWhatAWholeDocumentLacks) {
  const test::TempDirectory files;
  const auto why = [&](const char* content, int64_t line) {
    const std::string path = files.write("prompt.json", content);
    std::string message = read_prompt(path, line).error().message;
    EXPECT_TRUE(message.starts_with(path)) << message;
    return message.substr(std::min(path.size(), message.size()));
  };
  EXPECT_EQ(why("[1]\n[2]\n", 3), ", line 3: the file has 2 lines");
  EXPECT_EQ(why("[1]", 2), ", line 2: the file has 1 line");
  EXPECT_EQ(why("", 1), ", line 1: the file is empty");
  EXPECT_EQ(why("{\n\"a\": 1\n}", 1),
            ": neither an array of token ids nor an object with 'prompt_token_ids'");
  EXPECT_EQ(why("1, 2", 1).substr(0, 18), ", line 1: not JSON");
  EXPECT_TRUE(read_prompt(files.write("prompt.json", "[1]\n[2]"), 2).ok());
  EXPECT_TRUE(read_prompt(files.write("prompt.json", "[\n1\n]\n"), 1).ok());
}

TEST(ProgressView, DrawsABarOfConstantWidth) {
  EXPECT_EQ(ProgressView::bar(0, 4, 0, 0),
            "[----------------------------------------]   0/4 layers  density 0.000  0.0 s");
  EXPECT_EQ(ProgressView::bar(3, 4, 0.125, 1.25),
            "[##############################----------]   3/4 layers  density 0.125  1.2 s");
  EXPECT_EQ(ProgressView::bar(4, 4, 1, 2),
            "[########################################]   4/4 layers  density 1.000  2.0 s");
}

TEST(ServerAddress, IsAHostAPortAndWhetherItEncrypts) {
  const auto text = [](const char* from) {
    const auto address = ServerAddress::parse(from);
    if (!address.ok()) return address.error().message;
    return fmt::format("{} {} {}", address->host, address->port, address->encrypted);
  };
  EXPECT_EQ(text("localhost"), "localhost 8000 false");
  EXPECT_EQ(text("10.0.0.1:80"), "10.0.0.1 80 false");
  EXPECT_EQ(text("http://a.b:1/"), "a.b 1 false");
  EXPECT_EQ(text("https://a.b"), "a.b 8000 true");
  EXPECT_EQ(text("https://[::1]:65535"), "::1 65535 true");
  EXPECT_EQ(text("[fe80::1]"), "fe80::1 8000 false");
  for (const char* port : {"a:0", "a:65536", "a:", "a:1x", "ftp://a", "[::1]:"}) {
    EXPECT_TRUE(text(port).ends_with("is not a number from 1 to 65535")) << port;
  }
  for (const char* wrong : {"", ":1", "::1", "[::1", "[]:1", "[::1]x", "https://", "a/b"}) {
    EXPECT_TRUE(text(wrong).find("is not HOST[:PORT]") != std::string::npos) << wrong;
  }
}

TEST(ServerAddress, StandsInMessagesAndHeadersAsPeopleWriteIt) {
  EXPECT_EQ(ServerAddress::parse("https://[::1]:65535")->to_string(), "[::1]:65535");
  EXPECT_EQ(ServerAddress::parse("a.b")->to_string(), "a.b:8000");
}

// The environment belongs to the process, and each test is one.
class TokenSource : public ::testing::Test {
 protected:
  ~TokenSource() override {
    ::unsetenv("MILLRACE_TOKEN");
    ::unsetenv("MILLRACE_TOKEN_FILE");
  }
  test::TempDirectory files_;
};

TEST_F(TokenSource, IsAFileOrTheEnvironmentInThisOrder) {
  EXPECT_EQ(*find_token(""), "");
  ::setenv("MILLRACE_TOKEN", "one", 1);
  EXPECT_EQ(*find_token(""), "one");
  ::setenv("MILLRACE_TOKEN_FILE", files_.write("two", "two\r\nmore").c_str(), 1);
  EXPECT_EQ(*find_token(""), "two");
  EXPECT_EQ(*find_token(files_.write("three", "three")), "three");
}

TEST_F(TokenSource, WhatIsNoTokenIsNotSent) {
  EXPECT_EQ(find_token(files_.file("none")).error().code, Errc::kNotFound);
  for (const char* text : {"", "\nlater", "a b", "a\tb", "\x7f"}) {
    EXPECT_EQ(find_token(files_.write("token", text)).error().message,
              files_.file("token") + " holds no token")
        << text;
  }
  ::setenv("MILLRACE_TOKEN", "a\r\nX-Forged: 1", 1);
  EXPECT_EQ(find_token("").error().message, "MILLRACE_TOKEN holds no token");
}

TEST(HttpClient, ShowsItsToken) {
  const test::TempDirectory files;
  coordinator::ServerOptions options = coordinator::patient_options();
  // The hash of "alpha".
  options.token_file = files.write(
      "tokens", "a 8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8 read\n");
  coordinator::RunningServer server(options);
  const auto status = [&](const std::string& token) {
    const HttpClient client(address(server.http_port()), {.token = token, .tls = nullptr});
    return client.call({"GET", "/version", "", ""}, std::chrono::seconds(20))->status;
  };
  EXPECT_EQ(status("alpha"), 200);
  EXPECT_EQ(status("beta"), 401);
  EXPECT_EQ(status(""), 401);
}

TEST(HttpClient, FollowsAStreamToItsEnd) {
  coordinator::RunningServer server;
  coordinator::FakeGroup group(server.group_port());
  group.join(coordinator::FakeGroup::description("group-0", "g0"));
  const HttpClient client(address(server.http_port()));
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
  const HttpClient client(address(server.http_port()));
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
    const HttpClient client(address(port));
    const auto answer = client.call({"GET", "/ready", "", ""}, std::chrono::seconds(20));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->status, 503);
    EXPECT_NE(answer->body.find("no worker group is ready"), std::string::npos);
  }
  const HttpClient client(address(port));
  const auto answer = client.call({"GET", "/ready", "", ""}, std::chrono::seconds(20));
  EXPECT_EQ(answer.error().code, Errc::kUnavailable);
}

}  // namespace
}  // namespace millrace::client
