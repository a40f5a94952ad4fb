// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/fake_group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "protocol/codec.h"
#include "tests/unit/coordinator/loopback.h"

namespace millrace::coordinator {

namespace {

// Which of `events`, or which failure, a socket shows; 0 if none does within 10 s.
int wait_for(int socket, int16_t events) {
  pollfd watched{socket, events, 0};
  return ::poll(&watched, 1, 10'000) == 1 ? watched.revents : 0;
}

}  // namespace

FakeGroup::FakeGroup(uint16_t port) : socket_(connect_loopback(port)) {}
FakeGroup::~FakeGroup() {
  die();
}

void FakeGroup::die() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void FakeGroup::stop_sending() {
  ::shutdown(socket_, SHUT_WR);
}

bool FakeGroup::has_come() {
  return (wait_for(socket_, POLLIN) & POLLIN) != 0;
}

bool FakeGroup::reset_by_peer() {
  return (wait_for(socket_, 0) & POLLERR) != 0;
}

protocol::Register FakeGroup::description(const std::string& name, const std::string& id,
                                          const FakeModel& model) {
  protocol::Register out;
  out.set_protocol_version(protocol::kProtocolVersion);
  out.set_group_id(id);
  out.set_group_name(name);
  out.set_tp(1);
  out.set_cp(1);
  out.set_max_prompt_tokens(model.max_prompt_tokens);
  out.mutable_model()->set_name(model.name);
  out.mutable_model()->set_vocab_size(model.vocab_size);
  out.mutable_model()->set_num_layers(model.num_layers);
  return out;
}

void FakeGroup::join(const protocol::Register& description) {
  protocol::Envelope envelope;
  *envelope.mutable_register_() = description;
  num_layers_ = description.model().num_layers();
  model_ = description.model().name();
  send(envelope);
  const auto reply = receive();
  ASSERT_TRUE(reply.has_register_reply());
  ASSERT_FALSE(reply.register_reply().has_error()) << reply.register_reply().error().message();
}

void FakeGroup::send(const protocol::Envelope& envelope) {
  const auto frame = protocol::encode_frame(envelope);
  ASSERT_TRUE(frame.ok());
  send_bytes(*frame);
}

void FakeGroup::send_bytes(const std::string& bytes) {
  ASSERT_TRUE(send_all(socket_, bytes));
}

bool FakeGroup::read_exactly(char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::read(socket_, data + done, bytes - done);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

protocol::Envelope FakeGroup::receive() {
  for (;;) {
    std::array<std::byte, protocol::kFrameHeaderBytes> header{};
    if (!read_exactly(reinterpret_cast<char*>(header.data()), header.size())) break;
    const auto length = protocol::decode_frame_length(header);
    if (!length.ok()) break;
    std::vector<std::byte> body(static_cast<size_t>(*length));
    if (!read_exactly(reinterpret_cast<char*>(body.data()), body.size())) break;
    auto envelope = protocol::decode_frame_body(body);
    if (!envelope.ok()) break;
    if (!envelope->has_heartbeat()) return *std::move(envelope);
  }
  ADD_FAILURE() << "no message from the coordinator";
  return {};
}

protocol::PrefillRequest FakeGroup::receive_request() {
  const auto envelope = receive();
  EXPECT_TRUE(envelope.has_prefill_request()) << envelope.ShortDebugString();
  return envelope.prefill_request();
}

bool FakeGroup::closed_by_peer() {
  return read_until_closed(socket_);
}

void FakeGroup::send_started(const std::string& request_id) {
  protocol::Envelope envelope;
  envelope.mutable_prefill_started()->set_request_id(request_id);
  send(envelope);
}

void FakeGroup::send_opened(const std::string& request_id, const std::string& lease_id) {
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_prefill_opened();
  message.set_request_id(request_id);
  message.mutable_manifest()->set_version(1);
  message.mutable_manifest()->set_model(model_);
  message.mutable_manifest()->set_request_id(request_id);
  message.mutable_manifest()->set_lease_id(lease_id);
  send(envelope);
}

void FakeGroup::send_layer(const std::string& request_id, uint32_t layer, double density) {
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_layer_done();
  message.set_request_id(request_id);
  message.set_layer(layer);
  message.set_num_layers(num_layers_);
  message.set_density(density);
  send(envelope);
}

void FakeGroup::send_done(const std::string& request_id, const std::string& lease_id,
                          uint64_t lease_ms) {
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_prefill_done();
  message.set_request_id(request_id);
  auto& manifest = *message.mutable_manifest();
  manifest.set_version(1);
  manifest.set_model(model_);
  manifest.set_request_id(request_id);
  manifest.set_first_token_id(7);
  manifest.set_lease_id(lease_id);
  manifest.set_lease_ms(lease_ms);
  manifest.set_density(0.25);
  manifest.set_recall(0.97);
  auto& phase = *message.add_phases();
  phase.set_phase("attention");
  phase.set_seconds(0.5);
  auto& stage = *message.add_stages();
  stage.set_stage("layers");
  stage.set_seconds(0.75);
  message.mutable_stored()->set_bytes(640);
  message.mutable_stored()->set_while_computing(512);
  send(envelope);
}

void FakeGroup::send_failed(const std::string& request_id, int code, const std::string& message) {
  protocol::Envelope envelope;
  envelope.mutable_prefill_failed()->set_request_id(request_id);
  envelope.mutable_prefill_failed()->mutable_error()->set_code(code);
  envelope.mutable_prefill_failed()->mutable_error()->set_message(message);
  send(envelope);
}

void FakeGroup::send_lease_reply(const std::string& request_id, uint64_t expires_in_ms) {
  protocol::Envelope envelope;
  envelope.mutable_lease_reply()->set_request_id(request_id);
  envelope.mutable_lease_reply()->set_expires_in_ms(expires_in_ms);
  send(envelope);
}

void FakeGroup::send_drain() {
  protocol::Envelope envelope;
  envelope.mutable_drain();
  send(envelope);
}

void FakeGroup::serve(const protocol::PrefillRequest& request) {
  send_started(request.request_id());
  for (uint32_t layer = 0; layer < num_layers_; ++layer) send_layer(request.request_id(), layer);
  send_done(request.request_id());
}

}  // namespace millrace::coordinator
