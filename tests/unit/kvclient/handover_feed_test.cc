// SPDX-License-Identifier: Apache-2.0
// What pulling clients learn from the events of a prefill, and from events that lie.

#include "kvclient/handover/handover_feed.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <future>

#include "kvclient/handover/event_reader.h"

namespace millrace::kvclient {
namespace {

using Stage = HandoverFeed::Stage;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kManifest =
    R"({"manifest":{"request_id":"r","lease_id":"l","layout":{"num_layers":2}}})";
constexpr const char* kDone =
    R"({"manifest":{"request_id":"r","first_token_id":7,"layout":{"num_layers":2}}})";

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}
Deadline past() {
  return Deadline::after(Duration::zero());
}

class HandoverFeedTest : public ::testing::Test {
 protected:
  void take(const std::string& name, const std::string& data) { feed_.take(name, data); }
  void take_layer(int layer) { take("layer", fmt::format(R"({{"layer":{}}})", layer)); }
  void begin() {
    take("queued", R"({"request_id":"r","num_tokens":3})");
    take("manifest", kManifest);
  }
  void expect_failed(Errc code, const std::string& why) {
    for (const auto& error :
         {feed_.wait_for_manifest(past()).error(), feed_.wait_for_layer(0, past()).error(),
          feed_.wait_for_result(past()).error()}) {
      EXPECT_EQ(error.code, code) << error.to_string();
      EXPECT_THAT(error.message, AllOf(HasSubstr("request 'r': "), HasSubstr(why)));
    }
    EXPECT_TRUE(feed_.ended());
  }

  HandoverFeed feed_;
};

TEST_F(HandoverFeedTest, LayersAreThereInTheOrderOfTheirEvents) {
  begin();
  EXPECT_EQ(feed_.wait_for_manifest(past())->lease_id, "l");
  EXPECT_EQ(feed_.wait_for_layer(0, past()).error().code, Errc::kDeadlineExceeded);
  take_layer(0);
  EXPECT_TRUE(feed_.wait_for_layer(0, past()).ok());
  EXPECT_FALSE(feed_.wait_for_layer(1, past()).ok());
  EXPECT_EQ(feed_.stage(), Stage::kComputing);
  take_layer(1);
  EXPECT_EQ(feed_.stage(), Stage::kFinishing);
  EXPECT_FALSE(feed_.wait_for_result(past()).ok());
  take("done", kDone);
  EXPECT_EQ(feed_.stage(), Stage::kDone);
  EXPECT_EQ(feed_.wait_for_result(past())->first_token_id, 7);
  EXPECT_TRUE(feed_.ended());
}

TEST_F(HandoverFeedTest, AnAtEndRequestIsKnownWhenItIsDone) {
  take("queued", R"({"request_id":"r"})");
  take("started", "{}");
  take_layer(0);
  take_layer(1);
  EXPECT_EQ(feed_.stage(), Stage::kComputing);
  EXPECT_FALSE(feed_.wait_for_manifest(past()).ok());
  take("done", kDone);
  EXPECT_TRUE(feed_.wait_for_manifest(past()).ok());
  EXPECT_TRUE(feed_.wait_for_layer(1, past()).ok());
}

TEST_F(HandoverFeedTest, AManifestOfAFinishedRequestIsAllThereIsToKnow) {
  Manifest manifest;
  manifest.layout.num_layers = 2;
  HandoverFeed feed(manifest);
  EXPECT_TRUE(feed.wait_for_manifest(past()).ok());
  EXPECT_TRUE(feed.wait_for_layer(1, past()).ok());
  EXPECT_TRUE(feed.wait_for_result(past()).ok());
  EXPECT_EQ(feed.stage(), Stage::kDone);
}

TEST_F(HandoverFeedTest, WaitsEndWhenWhatTheyWaitForComes) {
  auto pulling = std::async(std::launch::async, [&] {
    const bool all = feed_.wait_for_manifest(ample()).ok() &&
                     feed_.wait_for_layer(0, ample()).ok() &&
                     feed_.wait_for_layer(1, ample()).ok() && feed_.wait_for_result(ample()).ok();
    return all;
  });
  begin();
  take_layer(0);
  take_layer(1);
  take("done", kDone);
  EXPECT_TRUE(pulling.get());
}

TEST_F(HandoverFeedTest, AnErrorEventEndsAllWaitsWithItsCodeAndTheRequest) {
  begin();
  auto waiting = std::async(std::launch::async, [&] { return feed_.wait_for_layer(0, ample()); });
  take("error", R"({"error":{"message":"the client asked","type":"cancelled","code":499}})");
  EXPECT_EQ(waiting.get().error().code, Errc::kCancelled);
  expect_failed(Errc::kCancelled, "the client asked");
  take_layer(0);
  expect_failed(Errc::kCancelled, "the client asked");
}

TEST_F(HandoverFeedTest, EventsThatCannotBeUnderstoodFailTheRequest) {
  begin();
  take_layer(1);
  expect_failed(Errc::kCorrupt, "after 0 layers");
}

TEST_F(HandoverFeedTest, OtherEventsThatCannotBeUnderstoodFailItToo) {
  for (const auto& [name, data] : {std::pair<std::string, std::string>{"layer", "[1]"},
                                   {"layer", R"({"layer":-1})"},
                                   {"layer", R"({"layer":"0"})"},
                                   {"manifest", "{"},
                                   {"manifest", R"({"manifest":{"color":"red"}})"},
                                   {"done", R"({"manifest":3})"},
                                   {"error", "3"}}) {
    HandoverFeed feed;
    feed.take("queued", R"({"request_id":"r"})");
    feed.take(name, data);
    EXPECT_TRUE(feed.ended()) << name << " " << data;
    EXPECT_THAT(feed.wait_for_result(past()).error().message, HasSubstr("request 'r': "));
  }
}

// Runs the reader on a pipe.
class EventReaderTest : public ::testing::Test {
 protected:
  EventReaderTest() { EXPECT_EQ(::pipe2(pipe_.data(), O_CLOEXEC), 0); }
  ~EventReaderTest() override {
    close_input();
    ::close(pipe_[0]);
  }
  void send(const std::string& text) {
    ASSERT_EQ(::write(pipe_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_input() {
    if (pipe_[1] >= 0) ::close(pipe_[1]);
    pipe_[1] = -1;
  }

  std::array<int, 2> pipe_ = {-1, -1};
  HandoverFeed feed_;
};

TEST_F(EventReaderTest, BringsEventsHoweverTheyAreCut) {
  const auto reader = EventReader::start(pipe_[0], feed_);
  ASSERT_TRUE(reader.ok());
  const std::string text = ": ping\n\nevent: manifest\ndata: " + std::string(kManifest) +
                           "\n\nevent: layer\ndata: {\"layer\":0}\n\n";
  for (const char c : text) send(std::string(1, c));
  EXPECT_TRUE(feed_.wait_for_manifest(ample()).ok());
  EXPECT_TRUE(feed_.wait_for_layer(0, ample()).ok());
}

TEST_F(EventReaderTest, AnInputThatEndsEarlyFailsTheRequest) {
  const auto reader = EventReader::start(pipe_[0], feed_);
  ASSERT_TRUE(reader.ok());
  send("event: queued\ndata: {\"request_id\":\"r\"}\n\n");
  close_input();
  const auto waited = feed_.wait_for_result(ample());
  EXPECT_EQ(waited.error().code, Errc::kPeerLost);
  EXPECT_THAT(waited.error().message, HasSubstr("request 'r': the events ended"));
}

TEST_F(EventReaderTest, StopsWhileNothingComes) {
  { const auto reader = EventReader::start(pipe_[0], feed_); }
  EXPECT_TRUE(feed_.ended());
}

}  // namespace
}  // namespace millrace::kvclient
