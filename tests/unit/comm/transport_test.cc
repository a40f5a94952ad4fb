// SPDX-License-Identifier: Apache-2.0
// What every Transport promises, for each implementation.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

using std::chrono::milliseconds;

// Long enough for sanitizers on a busy machine: only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

struct Implementation {
  std::string name;
  std::string reported_transport;
  std::function<std::unique_ptr<Transport>()> make;
};

void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}

std::unique_ptr<Transport> make_ucx(UcxTransports transports, int server_threads = 1) {
  auto transport =
      UcxTransport::create({.transports = transports, .server_threads = server_threads});
  MR_CHECK(transport.ok(), "{}", transport.error().to_string());
  return std::move(transport).value();
}

std::unique_ptr<Transport> make_tcp(int server_threads = 1) {
  return std::make_unique<TcpTransport>(TcpOptions{.server_threads = server_threads});
}

class TransportContract : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override { serve(answer_with_pattern); }

  void serve(TransportServer::Handler handler, int port = 0) {
    server_.reset();
    auto server = transport_->listen("127.0.0.1", port, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.error().to_string();
    server_ = std::move(server).value();
  }

  std::unique_ptr<TransportConnection> connect() {
    auto connection = transport_->connect(server_->address(), ample());
    MR_CHECK(connection.ok(), "{}", connection.error().to_string());
    return std::move(connection).value();
  }

  const std::unique_ptr<Transport> transport_ = GetParam().make();
  std::unique_ptr<TransportServer> server_;
};

// Asks for a pattern, checks every byte of it, and that no byte outside it was written.
void expect_pattern(TransportConnection& connection, int64_t num_bytes, int num_pieces) {
  constexpr std::byte kGuard{0xa5};
  std::vector<std::byte> memory(static_cast<size_t>(num_bytes) + 128, kGuard);
  const auto destination = std::span(memory).subspan(64, static_cast<size_t>(num_bytes));
  const auto request = pattern_request(num_bytes, num_pieces);
  auto reply = connection.call(request, destination, ample());
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  EXPECT_EQ(reply->header, "reply to " + request);
  EXPECT_EQ(reply->payload_bytes, num_bytes);

  const auto pattern = pattern_payload(num_bytes);
  EXPECT_TRUE(num_bytes == 0 ||
              std::memcmp(destination.data(), pattern.data(), pattern.size()) == 0)
      << num_bytes << " bytes in " << num_pieces << " pieces";
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(memory[i], kGuard);
    EXPECT_EQ(memory[memory.size() - 1 - i], kGuard);
  }
}

TEST_P(TransportContract, PayloadArrivesByteExact) {
  const auto connection = connect();
  for (const int64_t num_bytes : {0, 1, 4095, 8191, 8192, 8193, 1 << 20, 20 << 20}) {
    for (const int num_pieces : {1, 3, 640}) expect_pattern(*connection, num_bytes, num_pieces);
  }
}

TEST_P(TransportContract, APayloadFillsTheDestinationsPiecesInOrder) {
  const auto connection = connect();
  for (const int64_t num_bytes : {1000, 8191, 1 << 20, 5 << 20}) {
    for (const size_t piece_bytes : {333, 4096, 65536}) {
      std::vector<std::byte> memory(static_cast<size_t>(2 * num_bytes));
      // Pieces from the end of the memory to its beginning, with gaps between them.
      std::vector<std::span<std::byte>> pieces;
      size_t end = memory.size();
      for (size_t left = static_cast<size_t>(num_bytes); left > 0;) {
        const size_t bytes = std::min(left, piece_bytes);
        pieces.push_back(std::span(memory).subspan(end - bytes, bytes));
        end -= bytes + std::min<size_t>(bytes, 64);
        left -= bytes;
      }
      const auto reply = connection->call_into(pattern_request(num_bytes, 3), pieces, ample());
      ASSERT_TRUE(reply.ok()) << reply.error().to_string();
      EXPECT_EQ(reply->payload_bytes, num_bytes);
      const auto pattern = pattern_payload(num_bytes);
      auto expected = pattern.begin();
      for (const auto piece : pieces) {
        ASSERT_TRUE(std::equal(piece.begin(), piece.end(), expected)) << num_bytes;
        std::fill(piece.begin(), piece.end(), std::byte{0});
        expected += static_cast<ptrdiff_t>(piece.size());
      }
      EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b) {
        return b == std::byte{0};
      })) << "written beside the pieces";
    }
  }
}

TEST_P(TransportContract, WhatHasLandedDoesNotChangeAnyMore) {
  struct Observer : PayloadObserver {
    void landed(const ReplyHead& reply, int64_t num_bytes) override {
      EXPECT_EQ(reply.header, "reply to " + request);
      EXPECT_EQ(reply.payload_bytes, std::ssize(pattern));
      EXPECT_GT(num_bytes, seen);
      EXPECT_LE(num_bytes, reply.payload_bytes);
      EXPECT_EQ(std::memcmp(memory.data(), pattern.data(), static_cast<size_t>(num_bytes)), 0);
      seen = num_bytes;
      ++num_calls;
    }
    std::string request;
    std::vector<std::byte> pattern, memory;
    int64_t seen = 0;
    int num_calls = 0;
  } observer;
  const auto connection = connect();
  connection->observe(&observer);
  for (const int64_t num_bytes : {1, 8192, 5 << 20}) {
    observer.request = pattern_request(num_bytes, 3);
    observer.pattern = pattern_payload(num_bytes);
    observer.memory.assign(static_cast<size_t>(num_bytes), std::byte{0});
    observer.seen = 0;
    ASSERT_TRUE(connection->call(observer.request, observer.memory, ample()).ok());
    EXPECT_TRUE(observer.seen == num_bytes || observer.num_calls == 0);
  }
  const int num_calls = observer.num_calls;
  EXPECT_TRUE(num_calls == 0 || num_calls > 3) << "nothing is read before all of it is there";
  connection->observe(nullptr);
  expect_pattern(*connection, 100000, 1);
  EXPECT_EQ(observer.num_calls, num_calls);
}

TEST_P(TransportContract, AnInterruptedCallEndsAtOnceAndBreaksItsConnection) {
  std::promise<void> asked, go_on;
  serve([&](std::string_view request) {
    asked.set_value();
    go_on.get_future().wait();
    return answer_with_pattern(request);
  });
  auto connection = connect();
  std::vector<std::byte> destination(1 << 20);
  auto calling = std::async(std::launch::async, [&] {
    return connection->call(pattern_request(1 << 20, 1), destination, ample());
  });
  asked.get_future().wait();
  connection->interrupt();
  EXPECT_EQ(calling.get().error().code, Errc::kCancelled);
  EXPECT_FALSE(connection->call(pattern_request(1, 1), destination, ample()).ok());
  go_on.set_value();
  connection.reset();
  server_.reset();  // its handler uses what is here
  EXPECT_TRUE(destination == std::vector<std::byte>(1 << 20));
}

TEST_P(TransportContract, AnInterruptBeforeACallEndsTheNextOne) {
  const auto connection = connect();
  connection->interrupt();
  std::vector<std::byte> destination(100);
  EXPECT_EQ(connection->call(pattern_request(100, 1), destination, ample()).error().code,
            Errc::kCancelled);
}

TEST_P(TransportContract, TheLargestPayloadArrives) {
  expect_pattern(*connect(), kMaxTransportPayloadBytes, 3);
}

TEST_P(TransportContract, ReportsTheTransportInUse) {
  const auto connection = connect();
  expect_pattern(*connection, 1 << 20, 2);
  EXPECT_EQ(connection->transport_name(), GetParam().reported_transport);
}

TEST_P(TransportContract, AServerCountsWhatItSentByTheTransportInUse) {
  const auto connection = connect();
  for (int call = 0; call < 3; ++call) expect_pattern(*connection, 1 << 20, 2);
  const auto& name = GetParam().reported_transport;
  const auto stats = server_->stats();
  for (int i = 0; i < kNumCarriers; ++i) {
    const auto carrier = carrier_name(static_cast<Carrier>(i));
    const bool in_use = carrier == name || (carrier == "other" && name == "local");
    EXPECT_EQ(stats.bytes_sent_over[i], in_use ? stats.bytes_sent : 0) << carrier;
  }
}

TEST_P(TransportContract, APortCanBeTakenAgainAtOnce) {
  auto connection = connect();
  expect_pattern(*connection, 1 << 20, 2);
  const std::string address = server_->address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  serve(answer_with_pattern,
        port);  // the old server closes its connections, then the new one binds
  ASSERT_NE(server_, nullptr);
  // Each further thread of UCX has a free port, listed after a comma.
  const auto first_port = [](const std::string& of) { return of.substr(0, of.find(',')); };
  EXPECT_EQ(first_port(server_->address()), first_port(address));
  connection = connect();
  expect_pattern(*connection, 1 << 20, 2);
}

TEST_P(TransportContract, APortThatAServerHoldsIsRefused) {
  const std::string address = server_->address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  EXPECT_FALSE(transport_->listen("127.0.0.1", port, answer_with_pattern).ok());
  expect_pattern(*connect(), 100, 1);
}

TEST_P(TransportContract, HeadersUpToTheLimitArrive) {
  serve([](std::string_view request) {
    return TransportReply{.header = std::string(request), .payload = {}};
  });
  const auto connection = connect();
  for (const int64_t num_bytes :
       {int64_t{0}, int64_t{1}, int64_t{8000}, kMaxTransportHeaderBytes}) {
    std::string request(static_cast<size_t>(num_bytes), 'x');
    if (num_bytes > 1) request[1] = '\0';
    auto reply = connection->call(request, {}, ample());
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    EXPECT_TRUE(reply->header == request) << num_bytes << " bytes";
  }
}

TEST_P(TransportContract, ATooLongRequestIsRefusedAndTheConnectionGoesOn) {
  const auto connection = connect();
  const std::string request(kMaxTransportHeaderBytes + 1, 'x');
  auto reply = connection->call(request, {}, ample());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kTooLarge);
  expect_pattern(*connection, 100, 1);
}

TEST_P(TransportContract, ATooSmallDestinationIsRefusedAndTheConnectionGoesOn) {
  const auto connection = connect();
  for (const int64_t num_bytes : {100, 1 << 20}) {
    std::vector<std::byte> destination(static_cast<size_t>(num_bytes) - 1, std::byte{1});
    auto reply = connection->call(pattern_request(num_bytes, 2), destination, ample());
    ASSERT_FALSE(reply.ok());
    EXPECT_EQ(reply.error().code, Errc::kTooLarge);
    EXPECT_TRUE(destination == std::vector<std::byte>(destination.size(), std::byte{1}));
    expect_pattern(*connection, num_bytes, 2);
  }
}

TEST_P(TransportContract, AReplyBeyondTheLimitsIsRefusedAndTheConnectionGoesOn) {
  serve([](std::string_view request) {
    if (request == "long") {
      return TransportReply{.header = std::string(kMaxTransportHeaderBytes + 1, 'x'),
                            .payload = {}};
    }
    return answer_with_pattern(request);
  });
  const auto connection = connect();
  auto reply = connection->call("long", {}, ample());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kInternal);
  std::vector<std::byte> destination(kMaxTransportPayloadBytes + 1);
  reply = connection->call(pattern_request(kMaxTransportPayloadBytes + 1, 1), destination, ample());
  ASSERT_FALSE(reply.ok());
  expect_pattern(*connection, 100, 1);
}

TEST_P(TransportContract, ManyCallsInARow) {
  const auto connection = connect();
  for (int i = 0; i < 1000; ++i) expect_pattern(*connection, (i % 7) * 5000, 1 + i % 3);
  EXPECT_EQ(connection->stats().requests, 1000);
  EXPECT_EQ(connection->stats().failures, 0);
  EXPECT_EQ(server_->stats().requests, 1000);
}

TEST_P(TransportContract, SeveralClientsAtOnce) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([this, i] {
      const auto connection = connect();
      for (int j = 0; j < 20; ++j) expect_pattern(*connection, 100'000 * (i + 1) + j, 5);
    });
  }
  for (auto& client : clients) client.join();
}

TEST_P(TransportContract, AReplyThatComesLaterArrivesLikeAnyOther) {
  serve([](std::string_view request) {
    return TransportReply{
        .later = [text = std::string(request)] { return answer_with_pattern(text); }};
  });
  const auto connection = connect();
  for (int i = 0; i < 20; ++i) expect_pattern(*connection, 100'000 * i, 3);
  EXPECT_EQ(server_->stats().requests, 20);
}

TEST_P(TransportContract, CountsBytesOfHeadersAndPayload) {
  const auto connection = connect();
  const auto request = pattern_request(10'000, 2);
  expect_pattern(*connection, 10'000, 2);
  const auto request_bytes = static_cast<int64_t>(request.size());
  const int64_t reply_bytes = request_bytes + static_cast<int64_t>(strlen("reply to ")) + 10'000;
  EXPECT_EQ(connection->stats().bytes_sent, request_bytes);
  EXPECT_EQ(connection->stats().bytes_received, reply_bytes);
  EXPECT_EQ(server_->stats().bytes_received, request_bytes);
  EXPECT_EQ(server_->stats().bytes_sent, reply_bytes);
}

TEST_P(TransportContract, LetsGoOfAPayloadThatHasLeft) {
  std::promise<void> released;
  serve([&](std::string_view request) {
    auto reply = answer_with_pattern(request);
    auto data = std::move(reply.payload.keep_alive);
    reply.payload.keep_alive =
        std::shared_ptr<void>(data.get(), [data, &released](void*) { released.set_value(); });
    return reply;
  });
  const auto connection = connect();
  expect_pattern(*connection, 1 << 20, 3);
  EXPECT_EQ(released.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST_P(TransportContract, ConnectingToNobodyFails) {
  const auto address = server_->address();
  server_.reset();
  auto connection = transport_->connect(address, ample());
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code, Errc::kPeerLost) << connection.error().to_string();
}

TEST_P(TransportContract, AServerThatGoesIsAnErrorNotAWait) {
  const auto connection = connect();
  expect_pattern(*connection, 100, 1);
  server_.reset();
  auto reply = connection->call(pattern_request(100, 1), {}, ample());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kPeerLost) << reply.error().to_string();
  auto again = connection->call(pattern_request(100, 1), {}, ample());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().message, reply.error().message);
}

TEST_P(TransportContract, ALatePayloadDoesNotTouchTheDestination) {
  std::promise<void> release;
  serve([&, gate = release.get_future().share()](std::string_view request) {
    gate.wait();
    return answer_with_pattern(request);
  });
  auto connection = connect();
  std::vector<std::byte> destination(1 << 20);
  auto reply =
      connection->call(pattern_request(1 << 20, 3), destination, Deadline::after(milliseconds(50)));
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kDeadlineExceeded);
  EXPECT_FALSE(connection->call("again", destination, ample()).ok());
  connection.reset();
  release.set_value();

  expect_pattern(*connect(), 1 << 20, 3);  // by now the first reply was dealt with
  EXPECT_TRUE(destination == std::vector<std::byte>(1 << 20));
}

TEST_P(TransportContract, AServerSurvivesClientsThatComeAndGo) {
  for (int i = 0; i < 20; ++i) expect_pattern(*connect(), 20'000, 2);
}

TEST_P(TransportContract, ManyConnectionsAtOnceEachGetTheirOwn) {
  std::vector<std::future<void>> clients;
  for (int client = 0; client < 7; ++client) {
    clients.push_back(std::async(std::launch::async, [&, client] {
      const auto connection = connect();
      for (int call = 0; call < 20; ++call) {
        expect_pattern(*connection, 1000 * client + 4001 * call, 1 + call % 3);
      }
    }));
  }
  for (auto& client : clients) client.wait();
}

TEST_P(TransportContract, OutlivesItsTransport) {
  auto transport = GetParam().make();
  auto server = transport->listen("127.0.0.1", 0, answer_with_pattern);
  ASSERT_TRUE(server.ok());
  auto connection = transport->connect((*server)->address(), ample());
  ASSERT_TRUE(connection.ok());
  transport.reset();
  expect_pattern(**connection, 100'000, 2);
}

// One thread answers. Readers make "slow"; they wait until the test lets them go on.
class TransportReaders : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    auto server = transport_->listen("127.0.0.1", 0, [this](std::string_view request) {
      if (request == "throw") throw std::runtime_error("as asked");
      if (request == "throw later") {
        return TransportReply{.later = []() -> TransportReply { throw std::bad_alloc(); }};
      }
      if (request != "slow") return answer_with_pattern(request);
      return TransportReply{.later = [this] {
        ++waiting_;
        waiting_.notify_all();
        opened_.wait();
        ++read_;
        return answer_with_pattern("pattern 100 1");
      }};
    });
    ASSERT_TRUE(server.ok());
    server_ = std::move(*server);
  }
  void wait_for_readers(int count) {
    for (int seen = waiting_; seen < count; seen = waiting_) waiting_.wait(seen);
  }
  std::unique_ptr<TransportConnection> connect() {
    return *transport_->connect(server_->address(), ample());
  }

  std::promise<void> open_;
  const std::shared_future<void> opened_ = open_.get_future().share();
  std::atomic<int> waiting_ = 0, read_ = 0;
  const std::unique_ptr<Transport> transport_ = GetParam().make();
  std::unique_ptr<TransportServer> server_;
};

TEST_P(TransportReaders, OtherRequestsAreAnsweredWhileOneWaits) {
  std::vector<std::byte> memory(100);
  const auto slow = connect();
  auto calling =
      std::async(std::launch::async, [&] { return slow->call("slow", memory, ample()); });
  wait_for_readers(1);
  const auto other = connect();
  for (int i = 0; i < 10; ++i) expect_pattern(*other, 100'000, 2);
  EXPECT_EQ(read_, 0);
  open_.set_value();
  EXPECT_TRUE(calling.get().ok());
  EXPECT_EQ(memory, pattern_payload(100));
}

TEST_P(TransportReaders, AReplyThatCannotBeMadeIsAnErrorAndTheConnectionGoesOn) {
  const auto connection = connect();
  for (const char* request : {"throw", "throw later", "throw"}) {
    const auto reply = connection->call(request, {}, ample());
    ASSERT_FALSE(reply.ok()) << request;
    EXPECT_EQ(reply.error().code, Errc::kInternal);
    EXPECT_NE(reply.error().message.find("could not make the reply"), std::string::npos);
    expect_pattern(*connection, 1000, 2);
  }
  EXPECT_EQ(server_->stats().failures, 3);
}

TEST_P(TransportReaders, AReplyForAClientThatHasGoneIsDropped) {
  std::vector<std::byte> memory(100);
  auto gone = connect();
  auto calling =
      std::async(std::launch::async, [&] { return gone->call("slow", memory, ample()); });
  wait_for_readers(1);
  gone->interrupt();
  EXPECT_EQ(calling.get().error().code, Errc::kCancelled);
  gone.reset();
  const auto other = connect();
  expect_pattern(*other, 100'000, 2);
  open_.set_value();
  expect_pattern(*other, 100'000, 2);
}

TEST_P(TransportReaders, AServerThatStopsWaitsForItsReadersAndDropsWhoWaits) {
  std::vector<std::byte> memory(100);
  const auto first = connect(), second = connect();
  auto calling =
      std::async(std::launch::async, [&] { return first->call("slow", memory, ample()); });
  wait_for_readers(1);
  std::vector<std::byte> other(100);
  auto queued =
      std::async(std::launch::async, [&] { return second->call("slow", other, ample()); });
  open_.set_value();
  server_.reset();
  queued.wait();
  calling.wait();
  EXPECT_GE(read_, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Transports, TransportContract,
    testing::Values(
        Implementation{"Local", "local", [] { return std::make_unique<LocalTransport>(); }},
        Implementation{"Tcp", "tcp", [] { return make_tcp(); }},
        Implementation{"TcpThreads", "tcp", [] { return make_tcp(3); }},
        Implementation{"UcxAuto", "shm", [] { return make_ucx(UcxTransports::kAuto); }},
        Implementation{"UcxShm", "shm", [] { return make_ucx(UcxTransports::kSharedMemory); }},
        Implementation{"UcxTcp", "tcp", [] { return make_ucx(UcxTransports::kTcp); }},
        Implementation{"UcxShmThreads", "shm",
                       [] { return make_ucx(UcxTransports::kSharedMemory, 3); }},
        Implementation{"UcxTcpThreads", "tcp", [] { return make_ucx(UcxTransports::kTcp, 3); }}),
    [](const auto& param) { return param.param.name; });

INSTANTIATE_TEST_SUITE_P(Transports, TransportReaders,
                         testing::Values(Implementation{"Tcp", "tcp",
                                                        [] {
                                                          return std::make_unique<TcpTransport>(
                                                              TcpOptions{.server_threads = 1,
                                                                         .reader_threads = 1});
                                                        }},
                                         Implementation{"Ucx", "shm",
                                                        []() -> std::unique_ptr<Transport> {
                                                          return *UcxTransport::create(
                                                              {.server_threads = 1,
                                                               .reader_threads = 1});
                                                        }}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace millrace::comm
