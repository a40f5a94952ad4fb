// SPDX-License-Identifier: Apache-2.0
#include "worker/events/zmq/zmq_publisher.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tests/support/temp_directory.h"
#include "worker/events/event_batch.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kPatienceMs = 60'000;
constexpr int kTryMs = 50;  // for what a loop tries again
// Behind the time, which takes 9 bytes of a payload and the array's head one.
constexpr size_t kTimeEnd = 10;

// A socket of a subscriber, or of a client that missed something, by ZeroMQ's own functions.
class Peer {
 public:
  Peer(int type, const std::string& endpoint, int max_queued = 1000)
      : socket_(zmq_socket(context_, type)) {
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "kv", 2);
    set(ZMQ_RCVTIMEO, kPatienceMs);
    set(ZMQ_RCVHWM, max_queued);
    set(ZMQ_LINGER, 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << zmq_strerror(zmq_errno());
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void set(int option, int value) { zmq_setsockopt(socket_, option, &value, sizeof value); }
  void send(const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const int more = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
      zmq_send(socket_, parts[i].data(), parts[i].size(), more);
    }
  }
  // The parts of the next message; empty if none comes.
  std::vector<std::string> receive() {
    std::vector<std::string> parts;
    zmq_msg_t part;
    zmq_msg_init(&part);
    while (zmq_msg_recv(&part, socket_, 0) >= 0) {
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      if (zmq_msg_more(&part) == 0) break;
    }
    zmq_msg_close(&part);
    return parts;
  }

 private:
  void* context_ = zmq_ctx_new();
  void* socket_;
};

std::string number(uint8_t last) {
  return std::string(7, '\0') + static_cast<char>(last);
}

uint64_t to_integer(std::string_view number) {
  uint64_t made = 0;
  for (const char byte : number) made = made << 8 | static_cast<uint8_t>(byte);
  return made;
}

// A payload without its time.
std::string timeless(const std::string& payload) {
  return payload.size() < kTimeEnd ? payload : payload.substr(kTimeEnd);
}
std::string timeless(const KvEvent& event) {
  const auto payload = encode_event_batch(0, std::span(&event, 1));
  return timeless(std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

KvEvent removed(BlockHash hash) {
  return BlocksRemoved{.hashes = {hash}};
}

class ZmqPublisherTest : public ::testing::Test {
 protected:
  ZmqPublisherOptions options() const {
    return {.endpoint = fmt::format("ipc://{}/events", directory_.path()),
            .replay_endpoint = fmt::format("ipc://{}/replays", directory_.path()),
            .topic = "kv@here"};
  }
  void open(const ZmqPublisherOptions& options) {
    auto opened = ZmqPublisher::open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    publisher_ = std::move(*opened);
  }
  void expect_message(Peer& subscriber, uint8_t sequence, const KvEvent& event) {
    auto parts = subscriber.receive();
    ASSERT_THAT(parts, SizeIs(3));
    parts[2] = timeless(parts[2]);
    EXPECT_THAT(parts, ElementsAre("kv@here", number(sequence), timeless(event)));
  }
  // For each batch in a replay from `start`: its sequence number, and its payload without the time.
  std::vector<std::pair<std::string, std::string>> replay(const std::string& start) {
    Peer client(ZMQ_DEALER, options().replay_endpoint);
    client.send({"", start});
    std::vector<std::pair<std::string, std::string>> batches;
    while (true) {
      const auto parts = client.receive();
      EXPECT_THAT(parts, SizeIs(3));
      if (parts.size() != 3 || parts[1] == std::string(8, '\xff')) return batches;
      batches.emplace_back(parts[1], timeless(parts[2]));
    }
  }

  // Subscribers from here on do not get what was published before: it is sent before a replay.
  void wait_until_sent() { replay(number(0)); }

  test::TempDirectory directory_;
  std::unique_ptr<ZmqPublisher> publisher_;
};

TEST_F(ZmqPublisherTest, SendsTopicNumberAndPayloadInOrder) {
  open(options());
  wait_until_sent();
  Peer subscriber(ZMQ_SUB, options().endpoint);
  expect_message(subscriber, 1, AllBlocksCleared());
  publisher_->publish({removed(1), BlocksStored{.hashes = {2}, .token_ids = {3}}});
  publisher_->publish({});
  publisher_->publish({removed(4)});
  expect_message(subscriber, 2, removed(1));
  expect_message(subscriber, 3, BlocksStored{.hashes = {2}, .token_ids = {3}});
  expect_message(subscriber, 4, removed(4));
}

TEST_F(ZmqPublisherTest, WhoComesWhenPagesAreStoredIsNotToldOfAnEmptyCache) {
  open(options());
  publisher_->publish({BlocksStored{.hashes = {1}}});
  wait_until_sent();
  Peer late(ZMQ_SUB, options().endpoint);
  late.set(ZMQ_RCVTIMEO, kTryMs);
  std::vector<std::string> first;
  while (first.empty()) {
    publisher_->publish({removed(2)});
    first = late.receive();
  }
  EXPECT_EQ(timeless(first.back()), timeless(removed(2)));
  const auto all = replay(number(0));
  const auto is_cleared = [](const auto& batch) {
    return batch.second == timeless(AllBlocksCleared());
  };
  EXPECT_EQ(std::ranges::count_if(all, is_cleared), 1);
}

// A batch of this many blocks.
BlocksStored stored(BlockHash first, size_t count) {
  BlocksStored made;
  for (size_t i = 0; i < count; ++i) {
    made.hashes.push_back(first + i);
    made.token_ids.insert(made.token_ids.end(), 64, 7);
  }
  return made;
}

std::string timeless(const std::vector<KvEvent>& events) {
  const auto payload = encode_event_batch(0, events);
  return timeless(std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

TEST_F(ZmqPublisherTest, WhatIsCachedFromTheStartOnGoesBehindTheFirstInFewBatches) {
  open(options());
  publisher_->publish_start({stored(1, 200), stored(300, 56), stored(400, 1), stored(500, 256)});
  EXPECT_THAT(replay(number(0)),
              ElementsAre(std::pair(number(0), timeless(AllBlocksCleared())),
                          std::pair(number(1), timeless({stored(1, 200), stored(300, 56)})),
                          std::pair(number(2), timeless(stored(400, 1))),
                          std::pair(number(3), timeless(stored(500, 256)))));
}

TEST_F(ZmqPublisherTest, WhoSubscribesIsToldOfTheStartUntilSomethingElseHappens) {
  auto few = options();
  few.buffer_batches = 1;  // for replays alone
  open(few);
  publisher_->publish_start({stored(1, 256), stored(300, 1)});
  wait_until_sent();
  Peer first(ZMQ_SUB, options().endpoint);
  expect_message(first, 3, AllBlocksCleared());
  expect_message(first, 4, stored(1, 256));
  expect_message(first, 5, stored(300, 1));
  Peer second(ZMQ_SUB, options().endpoint);
  for (Peer* peer : {&first, &second}) {
    expect_message(*peer, 6, AllBlocksCleared());
    expect_message(*peer, 7, stored(1, 256));
    expect_message(*peer, 8, stored(300, 1));
  }
  publisher_->publish({removed(300)});
  expect_message(first, 9, removed(300));
  Peer late(ZMQ_SUB, options().endpoint);
  late.set(ZMQ_RCVTIMEO, kTryMs);
  std::vector<std::string> heard;
  while (heard.empty()) {
    publisher_->publish({removed(2)});
    heard = late.receive();
  }
  EXPECT_EQ(timeless(heard.back()), timeless(removed(2)));
}

TEST_F(ZmqPublisherTest, ReplaysWhatIsKeptFromANumberOn) {
  open(options());
  publisher_->publish({removed(1), removed(2), removed(3)});
  EXPECT_THAT(replay(number(2)), ElementsAre(std::pair(number(2), timeless(removed(2))),
                                             std::pair(number(3), timeless(removed(3)))));
  EXPECT_THAT(replay(number(0)), SizeIs(4));
  EXPECT_THAT(replay(number(4)), IsEmpty());
}

TEST_F(ZmqPublisherTest, KeepsTheLastBatchesAlone) {
  auto few = options();
  few.buffer_batches = 2;
  open(few);
  publisher_->publish({removed(1), removed(2), removed(3)});
  EXPECT_THAT(replay(number(0)), ElementsAre(std::pair(number(2), timeless(removed(2))),
                                             std::pair(number(3), timeless(removed(3)))));
}

TEST_F(ZmqPublisherTest, AsksThatAreNoneAreLeftUnansweredAndHarmNobody) {
  open(options());
  Peer client(ZMQ_DEALER, options().replay_endpoint);
  client.send({"", "seven.."});
  client.send({number(0)});
  client.send({"", number(0), ""});
  client.send({"", number(0)});
  EXPECT_THAT(client.receive(), ElementsAre("", number(0), ::testing::_));
  EXPECT_THAT(client.receive(), ElementsAre("", std::string(8, '\xff'), ""));
}

TEST_F(ZmqPublisherTest, AReqSocketGetsItsFirstBatch) {
  open(options());
  Peer client(ZMQ_REQ, options().replay_endpoint);
  client.send({number(0)});
  EXPECT_THAT(client.receive(), ElementsAre(number(0), ::testing::_));
}

TEST_F(ZmqPublisherTest, WhoDoesNotKeepUpMissesSomeAndAReplayHasThem) {
  open(options());
  Peer slow(ZMQ_SUB, options().endpoint, /*max_queued=*/1);
  slow.set(ZMQ_RCVTIMEO, kTryMs);
  // 8 KB each: three times what ZeroMQ queues for a subscriber.
  const BlocksStored large{.hashes = {1}, .token_ids = std::vector<int32_t>(1600, 1 << 20)};
  for (int i = 0; i < 3 * ZmqPublisher::kMaxQueued; ++i) publisher_->publish({large});
  std::vector<std::string> received;  // numbers
  for (bool ended = false; !ended;) {
    publisher_->publish({removed(9)});
    for (auto parts = slow.receive(); !parts.empty() && !ended; parts = slow.receive()) {
      received.push_back(parts[1]);
      ended = timeless(parts[2]) == timeless(removed(9));
    }
  }
  const auto before_gap = std::ranges::adjacent_find(
      received, [](const auto& a, const auto& b) { return to_integer(b) != to_integer(a) + 1; });
  ASSERT_NE(before_gap, received.end());
  const auto missed = replay(*before_gap);
  ASSERT_GE(missed.size(), 2u);
  EXPECT_EQ(missed[0].first, *before_gap);
  EXPECT_EQ(to_integer(missed[1].first), to_integer(*before_gap) + 1);
  EXPECT_EQ(missed[1].second, timeless(large));
}

TEST_F(ZmqPublisherTest, SaysWhichEndpointCannotBeHad) {
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(other, any, size), 0);
  ASSERT_EQ(listen(other, 1), 0);
  ASSERT_EQ(getsockname(other, any, &size), 0);
  const std::string taken = fmt::format("tcp://127.0.0.1:{}", ntohs(address.sin_port));
  auto wanted = options();
  wanted.endpoint = taken;
  const auto events = ZmqPublisher::open(wanted);
  ASSERT_FALSE(events.ok());
  EXPECT_EQ(events.error().code, Errc::kIo);
  EXPECT_EQ(events.error().message, taken + ": Address already in use");
  wanted = options();
  wanted.replay_endpoint = taken;
  const auto replays = ZmqPublisher::open(wanted);
  ASSERT_FALSE(replays.ok());
  EXPECT_EQ(replays.error().message, taken + ": Address already in use");
  close(other);
}

}  // namespace
}  // namespace millrace::worker
