// SPDX-License-Identifier: Apache-2.0
// Who is given memory, how long the memory that an answer names is kept in place, and who is turned
// away.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "comm/memfd/memfd_connection.h"
#include "comm/memfd/memfd_server.h"
#include "common/system/shared_memory.h"
#include "common/system/shared_memory_view.h"
#include "tests/support/captured_log.h"
#include "tests/support/child_process.h"

namespace millrace::comm {
namespace {

constexpr int64_t kBytes = 1 << 16;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

bool listens(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  std::stringstream text;
  text << sockets.rdbuf();
  return text.str().find(name) != std::string::npos;
}

// Grants every request but "no", and counts the grants that are held.
class MemfdTest : public ::testing::Test {
 protected:
  void serve(const MemfdServerOptions& options = {}) {
    server_ = *MemfdServer::start(
        {memory_.descriptor()},
        [this](std::string_view request) -> MemfdServer::Answer {
          ++asked_;
          if (request == "no") return {.text = "refused", .num_descriptors = 0, .keep_alive = {}};
          if (request == "wait") waited_.wait();
          ++held_;
          held_.notify_all();
          return {.text = "granted " + std::string(request),
                  .num_descriptors = 1,
                  .keep_alive = std::shared_ptr<void>(this, [this](void*) {
                    --held_;
                    held_.notify_all();
                  })};
        },
        options);
  }
  std::unique_ptr<MemfdConnection> connect() {
    return *MemfdConnection::open(server_->name(), ample());
  }
  void wait_until_held(int count) {
    for (int seen = held_; seen != count; seen = held_) held_.wait(seen);
  }

  const SharedMemory memory_ = *SharedMemory::create(kBytes);
  std::atomic<int> asked_ = 0, held_ = 0;
  std::promise<void> go_on_;
  const std::shared_future<void> waited_ = go_on_.get_future().share();
  std::unique_ptr<MemfdServer> server_;
};

TEST_F(MemfdTest, TheFirstAnswerThatGrantsItBringsTheMemory) {
  serve();
  memory_.bytes()[77] = std::byte{7};
  const auto connection = connect();
  EXPECT_EQ(*connection->call("no", ample()), "refused");
  EXPECT_TRUE(connection->take_descriptors().empty());
  EXPECT_EQ(*connection->call("one", ample()), "granted one");
  const auto descriptors = connection->take_descriptors();
  ASSERT_EQ(descriptors.size(), 1u);
  const auto view = *SharedMemoryView::map(descriptors[0]);
  EXPECT_EQ(view.bytes()[77], std::byte{7});
  EXPECT_EQ(*connection->call("two", ample()), "granted two");
  EXPECT_TRUE(connection->take_descriptors().empty());
}

TEST_F(MemfdTest, AnAnswerIsKeptInPlaceUntilItsAskerIsDone) {
  serve();
  const auto connection = connect();
  ASSERT_TRUE(connection->call("one", ample()).ok());
  EXPECT_EQ(held_, 1);
  connection->done();
  wait_until_held(0);
}

TEST_F(MemfdTest, TheNextQuestionLetsGoOfTheAnswerBefore) {
  serve();
  const auto connection = connect();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(connection->call("one", ample()).ok());
  EXPECT_EQ(held_, 1);
  ASSERT_TRUE(connection->call("no", ample()).ok());
  EXPECT_EQ(held_, 0);
}

TEST_F(MemfdTest, AnAskerThatClosesHoldsNothing) {
  serve();
  auto connection = connect();
  ASSERT_TRUE(connection->call("one", ample()).ok());
  connection.reset();
  wait_until_held(0);
}

TEST_F(MemfdTest, AnAskerThatIsKilledHoldsNothing) {
  test::ChildProcess child([](const std::string& name) {
    const auto connection = MemfdConnection::open(name, ample());
    if (!connection.ok() || !(*connection)->call("one", ample()).ok()) return 1;
    while (true) ::pause();
    return 0;
  });
  serve();
  child.tell(server_->name());
  wait_until_held(1);
  child.kill();
  wait_until_held(0);
  EXPECT_EQ(*connect()->call("two", ample()), "granted two");
}

TEST_F(MemfdTest, AnAskerThatHoldsAnAnswerTooLongLosesItsConnection) {
  serve({.grace = Duration::zero()});
  const auto connection = connect();
  ASSERT_TRUE(connection->call("one", ample()).ok());
  wait_until_held(0);
  EXPECT_EQ(connection->call("two", ample()).error().code, Errc::kPeerLost);
  EXPECT_EQ(*connect()->call("no", ample()), "refused");
}

// Tests the server's own check. The connection, which belongs to the rank's user, would refuse as
// well.
TEST_F(MemfdTest, AProcessOfAnotherUserIsTurnedAwayUnheard) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  test::ChildProcess child([](const std::string& name) {
    if (::setuid(kNobody) != 0) return 10;
    const auto socket = PacketSocket::connect(name, ample());
    if (!socket.ok()) return 11;
    (void)socket->send("Aone");
    socket->wait(ample());
    const auto received = socket->receive();
    return !received.ok() && received.error().code == Errc::kPeerLost ? 0 : 12;
  });
  test::ChildProcess careful([](const std::string& name) {
    if (::setuid(kNobody) != 0) return 10;
    const auto connection = MemfdConnection::open(name, ample());
    return !connection.ok() && connection.error().code == Errc::kUnsupported ? 0 : 12;
  });
  serve();
  child.tell(server_->name());
  careful.tell(server_->name());
  EXPECT_EQ(child.status(), 0);
  EXPECT_EQ(careful.status(), 0);
  EXPECT_EQ(asked_, 0);
}

TEST_F(MemfdTest, WhoSendsNonsenseIsDroppedAndTheOthersAreNot) {
  serve();
  const auto good = connect();
  for (const std::string& nonsense :
       {std::string("X"), std::string("Dx"), std::string(1000, 'z')}) {
    const auto stranger = *PacketSocket::connect(server_->name(), ample());
    ASSERT_TRUE(stranger.send(nonsense).ok());
    ASSERT_TRUE(stranger.wait(ample()));
    EXPECT_EQ(stranger.receive().error().code, Errc::kPeerLost);
    EXPECT_EQ(*good->call("no", ample()), "refused");
  }
}

TEST_F(MemfdTest, HowManyLinesStrangersCauseIsNotTheirsToChoose) {
  const CapturedLog log;
  serve();
  for (int i = 0; i < 100; ++i) {
    const auto stranger = *PacketSocket::connect(server_->name(), ample());
    ASSERT_TRUE(stranger.send("X").ok());
    ASSERT_TRUE(stranger.wait(ample()));
  }
  server_.reset();
  EXPECT_FALSE(log.lines().empty());
  EXPECT_LE(std::ssize(log.lines()), log.most_paced());
}

TEST_F(MemfdTest, AnInterruptedCallEndsAtOnce) {
  serve({.num_threads = 1});
  const auto connection = connect();
  auto calling = std::async(std::launch::async, [&] { return connection->call("wait", ample()); });
  for (int seen = asked_; seen < 1; seen = asked_) std::this_thread::yield();
  connection->interrupt();
  EXPECT_EQ(calling.get().error().code, Errc::kCancelled);
  EXPECT_EQ(connection->call("one", ample()).error().code, Errc::kCancelled);
  go_on_.set_value();
  EXPECT_EQ(*connect()->call("no", ample()), "refused");
}

TEST_F(MemfdTest, ACallThatIsNotAnsweredEndsAtItsDeadline) {
  serve();
  const auto connection = connect();
  const auto past = Deadline::after(Duration::zero());
  EXPECT_EQ(connection->call("wait", past).error().code, Errc::kDeadlineExceeded);
  go_on_.set_value();
}

TEST_F(MemfdTest, ManyAskersAtOnceEachGetTheirAnswers) {
  serve();
  std::vector<std::future<bool>> askers;
  for (int i = 0; i < 8; ++i) {
    askers.push_back(std::async(std::launch::async, [this, i] {
      const auto connection = connect();
      bool good = true;
      for (int j = 0; j < 200; ++j) {
        const auto question = fmt::format("{} {}", i, j);
        good = good && *connection->call(question, ample()) == "granted " + question;
        if (j % 3 == 0) connection->done();
      }
      return good;
    }));
  }
  for (auto& asker : askers) EXPECT_TRUE(asker.get());
  wait_until_held(0);
}

TEST_F(MemfdTest, AServerThatGoesIsAnErrorAndLeavesNoSocket) {
  serve();
  const auto name = server_->name();
  EXPECT_TRUE(listens(name));
  const auto connection = connect();
  ASSERT_TRUE(connection->call("one", ample()).ok());
  server_.reset();
  EXPECT_EQ(held_, 0);
  EXPECT_EQ(connection->call("two", ample()).error().code, Errc::kPeerLost);
  EXPECT_EQ(MemfdConnection::open(name, ample()).error().code, Errc::kPeerLost);
  EXPECT_FALSE(listens(name));
}

}  // namespace
}  // namespace millrace::comm
