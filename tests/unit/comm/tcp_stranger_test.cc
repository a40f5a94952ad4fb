// SPDX-License-Identifier: Apache-2.0
// The KV port and strangers: who is not let in, what happens to slow peers, and that clients notice
// none of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/net/address_scheme.h"
#include "comm/net/socket_address.h"
#include "comm/tcp/frame_reader.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/tcp/wire.h"
#include "common/errc_wire.h"
#include "common/system/file_descriptor.h"
#include "tests/support/captured_log.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::string_view kLease = "0123456789abcdef0123456789abcdef";
constexpr std::string_view kAnotherLease = "fedcba9876543210fedcba9876543210";

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A socket that sends what the test says.
class Stranger {
 public:
  explicit Stranger(const std::string& address, const std::string& says = {}) {
    const auto target = *SocketAddress::parse(split_scheme(address)->where);
    socket_ = FileDescriptor(::socket(target.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connected_ = ::connect(socket_.get(), target.data(), target.size()) == 0;
    say(says);
  }
  bool connected() const { return connected_; }
  void say(std::string_view bytes) const {
    (void)!::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Reads until the server ends the connection, which it must.
  std::string receive_all() const {
    std::string heard;
    std::array<char, 4096> bytes{};
    while (true) {
      pollfd watched{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&watched, 1, 60'000) != 1) return heard + "(it goes on)";
      const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (count <= 0) return heard;
      heard.append(bytes.data(), static_cast<size_t>(count));
    }
  }
  // Reads exactly so much; false if the server ends the connection before.
  bool hear(std::span<char> bytes) const {
    return ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void no_more() const { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  FileDescriptor socket_;
  bool connected_ = false;
};

std::string hello_of(std::string_view capability) {
  return text_of(write_client_hello(capability));
}

class TcpStrangers : public testing::Test {
 protected:
  void serve(const TcpLimits& limits) {
    transport_ = std::make_unique<TcpTransport>(
        TcpOptions{.server_threads = 2, .reader_threads = 1, .limits = limits});
    auto server = transport_->listen(
        "127.0.0.1", 0, [this](std::string_view request) { return answer_(request); },
        [](std::string_view capability) {
          return capability == kLease || capability == kAnotherLease;
        });
    ASSERT_TRUE(server.ok()) << server.error().to_string();
    server_ = std::move(*server);
  }
  Result<std::unique_ptr<TransportConnection>> connect(std::string_view capability = kLease) {
    return transport_->connect(server_->address(), std::string(capability), ample());
  }
  // Connects like a client that has been let in.
  Stranger admitted() {
    Stranger client(server_->address(), hello_of(kLease));
    return client;
  }
  void expect_served() {
    const auto connection = connect();
    ASSERT_TRUE(connection.ok()) << connection.error().to_string();
    std::vector<std::byte> destination(100'000);
    const auto reply = (*connection)->call(pattern_request(100'000, 3), destination, ample());
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    EXPECT_TRUE(destination == pattern_payload(100'000));
  }

  TransportServer::Handler answer_ = answer_with_pattern;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<TransportServer> server_;
};

TEST_F(TcpStrangers, WhoIsNotAdmittedIsToldAndTheConnectionEnds) {
  serve({});
  for (const std::string wrong : {"", "0123456789abcdef0123456789abcdeF", "0123456789abcdef"}) {
    const auto refused = connect(wrong);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Errc::kNotFound);
    EXPECT_THAT(refused.error().message, HasSubstr("no such lease"));
    const Stranger stranger(server_->address(), hello_of(wrong));
    EXPECT_EQ(stranger.receive_all(),
              text_of(write_server_hello({.errc = errc_to_wire(Errc::kNotFound)})));
  }
  EXPECT_EQ(server_->stats().refused, 6);
  expect_served();
}

TEST_F(TcpStrangers, AnotherVersionIsToldByName) {
  serve({});
  std::string hello = hello_of(kLease);
  hello[8] = 7;
  const Stranger stranger(server_->address(), hello);
  const std::string answer = stranger.receive_all();
  ASSERT_EQ(answer.size(), kServerHelloBytes);
  ServerHelloBytes bytes;
  std::memcpy(bytes.data(), answer.data(), answer.size());
  EXPECT_EQ(read_server_hello(bytes)->version, kTcpWireVersion);
  EXPECT_EQ(read_server_hello(bytes)->errc, errc_to_wire(Errc::kUnsupported));
}

// Takes one connection at a time and sends it these bytes.
class ServerThatSays {
 public:
  explicit ServerThatSays(std::string bytes) {
    const auto address = *SocketAddress::resolve("127.0.0.1", 0);
    listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MR_CHECK(::bind(listener_.get(), address.data(), address.size()) == 0 &&
                 ::listen(listener_.get(), 8) == 0,
             "listen");
    thread_ = std::thread([this, bytes = std::move(bytes)] {
      const FileDescriptor client(::accept(listener_.get(), nullptr, nullptr));
      std::array<std::byte, kClientHelloBytes> hello{};
      (void)!::recv(client.get(), hello.data(), hello.size(), MSG_WAITALL);
      (void)!::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    });
  }
  ~ServerThatSays() { thread_.join(); }
  std::string address() const {
    return with_scheme(kTcpScheme, SocketAddress::of_socket(listener_.get())->to_string());
  }

 private:
  FileDescriptor listener_;
  std::thread thread_;
};

TEST(TcpClient, TellsWhoSpeaksAnotherVersionOrSomethingElse) {
  TcpTransport transport({});
  {
    const ServerThatSays newer(
        text_of(write_server_hello({.version = 9, .errc = errc_to_wire(Errc::kUnsupported)})));
    const auto connected = transport.connect(newer.address(), ample());
    ASSERT_FALSE(connected.ok());
    EXPECT_EQ(connected.error().code, Errc::kUnsupported);
    EXPECT_THAT(connected.error().message, HasSubstr("version 9"));
  }
  {
    const ServerThatSays web("HTTP/1.1 400 Bad Request\r\n\r\n");
    const auto connected = transport.connect(web.address(), ample());
    ASSERT_FALSE(connected.ok());
    EXPECT_EQ(connected.error().code, Errc::kUnsupported);
    EXPECT_THAT(connected.error().message, HasSubstr("no KV server"));
  }
  {
    const ServerThatSays mute("");
    const auto connected = transport.connect(mute.address(), ample());
    ASSERT_FALSE(connected.ok());
    EXPECT_EQ(connected.error().code, Errc::kPeerLost);
  }
}

TEST(TcpClient, RefusesAddressesOfOthers) {
  TcpTransport transport({});
  EXPECT_EQ(transport.connect("ucx://127.0.0.1:9", ample()).error().code, Errc::kUnsupported);
  EXPECT_EQ(transport.connect("127.0.0.1:9", ample()).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(transport.connect("tcp://127.0.0.1", ample()).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(transport.connect("tcp://127.0.0.1:9", std::string(65, 'x'), ample()).error().code,
            Errc::kInvalidArgument);
}

// The server ends a connection at once if it cannot begin with a hello, and at the deadline if it
// might.
TEST_F(TcpStrangers, WhatIsNoHelloEndsAndNothingIsSaid) {
  serve({.hello = milliseconds(50)});
  const std::string tls_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  for (const std::string& bytes :
       {std::string(512, '\0'), std::string(1 << 20, '\0'), std::string("GET / HTTP/1.1\r\n\r\n"),
        tls_hello, std::string(100'000, '\xff'), std::string(), hello_of(kLease).substr(0, 79),
        text_of(write_request_frame({.header_bytes = 0xffffffff}))}) {
    const Stranger stranger(server_->address(), bytes);
    EXPECT_EQ(stranger.receive_all(), "") << bytes.size();
  }
  std::string huge = hello_of(kLease);
  std::memset(huge.data() + 12, 0xff, 4);  // of its capability
  EXPECT_EQ(Stranger(server_->address(), huge).receive_all(), "");
  expect_served();
}

TEST_F(TcpStrangers, ACrowdThatSaysNothingKeepsNobodyOut) {
  serve({.max_strangers = 20, .max_strangers_of_address = 10, .hello = std::chrono::minutes(10)});
  std::vector<Stranger> crowd;
  for (int i = 0; i < 200; ++i) crowd.emplace_back(server_->address(), i % 2 == 0 ? "" : "\x8dMRK");
  expect_served();
  EXPECT_EQ(crowd.front().receive_all(), "");  // who came first went first
  EXPECT_GE(server_->stats().refused, 189);
}

TEST_F(TcpStrangers, MoreClientsThanAllowedAreToldToComeAgain) {
  serve({.max_clients = 2, .gives_way_after = std::chrono::hours(1)});
  auto first = connect();
  const auto second = connect();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(connect().error().code, Errc::kExhausted);
  first->reset();
  while (!connect().ok()) std::this_thread::yield();  // once the server has noticed
}

TEST_F(TcpStrangers, OneLeaseDoesNotTakeTheConnectionsOfAnother) {
  serve({.max_clients_of_lease = 2, .gives_way_after = std::chrono::hours(1)});
  auto first = connect();
  const auto second = connect();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(connect().error().code, Errc::kExhausted);
  EXPECT_TRUE(connect(kAnotherLease).ok());
  first->reset();
  while (!connect().ok()) std::this_thread::yield();  // once the server has noticed
}

TEST_F(TcpStrangers, ConnectionsThatAskForNothingGiveWay) {
  serve({.max_clients = 4, .max_clients_of_lease = 3, .gives_way_after = Duration::zero()});
  std::vector<Stranger> idle;
  for (int i = 0; i < 3; ++i) {
    idle.push_back(admitted());
    std::array<char, kServerHelloBytes> hello{};
    ASSERT_TRUE(idle.back().hear(hello));
  }
  // As many as there may be, of one lease.
  for (int i = 0; i < 10; ++i) expect_served();
  const auto other = connect(kAnotherLease);
  ASSERT_TRUE(other.ok()) << other.error().to_string();
  EXPECT_EQ(idle.front().receive_all(), "");
  std::vector<std::byte> destination(1000);
  EXPECT_TRUE((*other)->call(pattern_request(1000, 1), destination, ample()).ok());
}

TEST_F(TcpStrangers, RequestsThatAreNoneEndTheirConnectionAlone) {
  serve({.request = milliseconds(50)});
  const auto bystander = connect();
  for (const std::string& bytes :
       {std::string(24, '\0'),
        text_of(write_request_frame({.header_bytes = kMaxTransportHeaderBytes + 1})),
        text_of(write_request_frame({.header_bytes = 0xffffffff})),
        text_of(write_request_frame({.destination_bytes = -1})),
        // Begun, and not finished in time.
        text_of(write_request_frame({.header_bytes = 100})), std::string("MRR1")}) {
    auto client = admitted();
    client.say(bytes);
    EXPECT_EQ(client.receive_all(), text_of(write_server_hello({})));
  }
  std::vector<std::byte> destination(1000);
  EXPECT_TRUE((*bystander)->call(pattern_request(1000, 1), destination, ample()).ok());
}

TEST_F(TcpStrangers, HowManyLinesAClientCausesIsNotItsToChoose) {
  const CapturedLog log;
  serve({});
  for (int i = 0; i < 100; ++i) {
    auto client = admitted();
    client.say(std::string(24, '\0'));
    client.receive_all();
  }
  server_.reset();
  EXPECT_FALSE(log.lines().empty());
  EXPECT_LE(std::ssize(log.lines()), log.most_paced());
}

TEST_F(TcpStrangers, WhoAsksForNothingForTooLongLosesItsConnection) {
  serve({.idle = milliseconds(50)});
  EXPECT_EQ(admitted().receive_all(), text_of(write_server_hello({})));
}

// The pages of a reply that is not read are released, whoever delays it.
class TcpSlowReaders : public TcpStrangers {
 protected:
  void SetUp() override {
    answer_ = [this](std::string_view) {
      auto bytes = std::make_shared<std::vector<std::byte>>(32 << 20);
      TransportReply reply{.header = "", .payload = {.pieces = {std::span(*bytes)}}};
      ++pinned_;
      reply.payload.keep_alive =
          std::shared_ptr<void>(bytes.get(), [bytes, this](void*) { --pinned_; });
      return reply;
    };
  }
  void TearDown() override { server_.reset(); }  // before what its replies count in
  Stranger that_asks() {
    auto client = admitted();
    client.say(text_of(write_request_frame({.destination_bytes = 64 << 20})));
    return client;
  }
  void wait_for_pinned(int count) {
    while (pinned_ != count) std::this_thread::yield();
  }

  std::atomic<int> pinned_ = 0;
};

TEST_F(TcpSlowReaders, WhoDoesNotGoOnTakingItsReplyIsDropped) {
  serve({.stall = milliseconds(100)});
  const auto slow = that_asks();
  wait_for_pinned(1);
  wait_for_pinned(0);
}

TEST_F(TcpSlowReaders, WhoTakesTooLongForItsReplyIsDropped) {
  serve({.reply = milliseconds(100)});
  const auto slow = that_asks();
  wait_for_pinned(1);
  wait_for_pinned(0);
}

TEST_F(TcpSlowReaders, WhoGoesIsNoticedAtOnce) {
  serve({});
  {
    const auto gone = that_asks();
    wait_for_pinned(1);
  }
  wait_for_pinned(0);
  const auto half = that_asks();
  wait_for_pinned(1);
  half.no_more();  // does not ask again, so does not need this either
  wait_for_pinned(0);
}

// Two replies fill the budget. Later ones wait until the slow readers are dropped.
TEST_F(TcpSlowReaders, RepliesThatNobodyTakesHoldNoMoreThanTheirBudget) {
  serve({.reply_bytes = 64 << 20, .reply_in_crowd = milliseconds(200)});
  const auto first = that_asks(), second = that_asks();
  wait_for_pinned(2);
  const auto connection = connect();
  std::vector<std::byte> destination(32 << 20);
  EXPECT_TRUE((*connection)->call("", destination, ample()).ok());
  EXPECT_EQ(server_->stats().requests, 3);
}

// A pull runs while strangers do everything they can.
TEST_F(TcpStrangers, AThousandStrangersChangeNothingOfAPull) {
  serve({.hello = milliseconds(500)});
  std::atomic<bool> over = false;
  std::atomic<int> pulled = 0;
  std::vector<std::thread> pulls;
  for (int i = 0; i < 3; ++i) {
    pulls.emplace_back([&] {
      const auto connection = connect();
      ASSERT_TRUE(connection.ok()) << connection.error().to_string();
      std::vector<std::byte> destination(1 << 20);
      while (!over) {
        const auto reply = (*connection)->call(pattern_request(1 << 20, 5), destination, ample());
        ASSERT_TRUE(reply.ok()) << reply.error().to_string();
        ASSERT_TRUE(destination == pattern_payload(1 << 20));
        ++pulled;
      }
    });
  }
  const std::string tls_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  std::string noise(5000, '\0');
  uint32_t state = 1;
  for (char& byte : noise) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  const std::vector<std::string> sayings = {
      std::string(512, '\0'),
      noise,
      tls_hello,
      "",
      hello_of("wrong"),
      text_of(write_request_frame({.header_bytes = 0xffffffff})),
      hello_of(kLease).substr(0, 40)};
  while (pulled < 3) std::this_thread::yield();
  // In waves, because a process has only so many descriptors.
  for (size_t wave = 0; wave < 4; ++wave) {
    std::vector<Stranger> strangers;
    for (size_t i = 0; i < 250; ++i) {
      strangers.emplace_back(server_->address(), sayings[i % sayings.size()]);
      EXPECT_TRUE(strangers.back().connected());
      if (i % 7 == 3) strangers.back().no_more();
    }
    for (const auto& stranger : strangers) stranger.receive_all();
  }
  // One more stranger sends a byte at a time for as long as it may.
  const Stranger drop_by_drop(server_->address());
  for (const char byte : hello_of(kLease).substr(0, 79)) drop_by_drop.say({&byte, 1});
  EXPECT_EQ(drop_by_drop.receive_all(), "");
  EXPECT_GE(server_->stats().refused, 1001);
  const int before = pulled;
  while (pulled < before + 3) std::this_thread::yield();
  over = true;
  for (auto& pull : pulls) pull.join();
  expect_served();
}

TEST(FrameReader, TakesNoMemoryForWhatIsRefused) {
  FrameReader reader;
  const auto frame = write_request_frame({.header_bytes = kMaxTransportHeaderBytes + 1});
  std::ranges::copy(frame, reader.room().begin());
  EXPECT_FALSE(reader.took(frame.size()).ok());
  EXPECT_LT(reader.held_bytes(), 100u);
}

TEST(FrameReader, PutsTogetherWhatComesInPieces) {
  const std::string header = "which pages";
  const std::string bytes =
      text_of(write_request_frame({.header_bytes = 11, .call = 5, .destination_bytes = 7})) +
      header;
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    FrameReader reader;
    std::optional<FrameReader::Request> request;
    for (size_t at = 0; at < bytes.size();) {
      ASSERT_FALSE(request.has_value());
      const auto room = reader.room();
      const size_t count = std::min({piece, room.size(), bytes.size() - at});
      std::memcpy(room.data(), bytes.data() + at, count);
      at += count;
      request = *reader.took(count);
      EXPECT_EQ(reader.in_request(), at < bytes.size());
    }
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->header, header);
    EXPECT_EQ(request->frame.call, 5u);
    EXPECT_EQ(request->frame.destination_bytes, 7);
  }
}

}  // namespace
}  // namespace millrace::comm
