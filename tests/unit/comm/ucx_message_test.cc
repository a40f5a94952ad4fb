// SPDX-License-Identifier: Apache-2.0
// What happens to a message that is on its way when its sender gives up.
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "comm/net/address_scheme.h"
#include "comm/ucx/outgoing_message.h"
#include "comm/ucx/ucx_endpoint.h"
#include "comm/ucx/ucx_server.h"
#include "comm/ucx/wire_frame.h"

namespace millrace::comm {
namespace {

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class UcxMessage : public testing::TestWithParam<UcxTransports> {};

// The test keeps the server's thread in its handler, so that it takes nothing else and the payload
// stays in place.
TEST_P(UcxMessage, IsLetGoWithItsWorkerAndCountsForNobodyIfItsSenderWasFirst) {
  const auto context = *UcxContext::create({.transports = GetParam()});
  std::promise<void> answer;
  const auto server = *UcxServer::listen(context, *SocketAddress::resolve("127.0.0.1", 0), 1, 1,
                                         [&answer](std::string_view) {
                                           answer.get_future().wait();
                                           return TransportReply{};
                                         });
  auto worker = *UcxWorker::create(context);
  auto endpoint = *UcxEndpoint::connect(
      *worker, *SocketAddress::parse(*without_scheme(server->address(), kUcxScheme)));
  ASSERT_TRUE(endpoint->flush(ample()).ok());

  auto num_in_flight = std::make_shared<int>(0);
  ASSERT_TRUE(OutgoingMessage::send(OutgoingMessage::with_text(RequestFrame{.call = 1}, "wait"),
                                    endpoint->handle(), kRequestMessage, num_in_flight)
                  .ok());
  auto bytes = std::make_shared<std::vector<std::byte>>(1 << 20);
  const std::weak_ptr<std::vector<std::byte>> held = bytes;
  ASSERT_TRUE(OutgoingMessage::send(OutgoingMessage::with_payload(
                                        PayloadFrame{.call = 1},
                                        {.pieces = {*bytes}, .keep_alive = std::move(bytes)}),
                                    endpoint->handle(), kPayloadMessage, num_in_flight)
                  .ok());
  EXPECT_GE(*num_in_flight, 1);
  EXPECT_FALSE(held.expired());

  num_in_flight.reset();
  endpoint.reset();
  worker.reset();
  EXPECT_TRUE(held.expired());
  answer.set_value();
}

INSTANTIATE_TEST_SUITE_P(Transports, UcxMessage,
                         testing::Values(UcxTransports::kSharedMemory, UcxTransports::kTcp),
                         [](const auto& param) {
                           return param.param == UcxTransports::kTcp ? "tcp" : "shm";
                         });

}  // namespace
}  // namespace millrace::comm
