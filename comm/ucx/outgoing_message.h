// SPDX-License-Identifier: Apache-2.0
// One active message on its way. Keeps frame, text and payload alive until UCX is done with them:
// because they were sent, because the endpoint was closed, or at the latest because the worker is
// destroyed.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/result.h"

namespace millrace::comm {

class OutgoingMessage {
 public:
  template <typename Frame>
  static std::unique_ptr<OutgoingMessage> with_text(const Frame& frame, std::string text);
  template <typename Frame>
  static std::unique_ptr<OutgoingMessage> with_payload(const Frame& frame, Payload payload);

  // Hands the message to UCX. *num_in_flight is one higher until UCX is done, which may be after
  // the sender is gone. After an error nothing was sent.
  static Result<void> send(std::unique_ptr<OutgoingMessage> message, ucp_ep_h endpoint,
                           unsigned message_id, std::shared_ptr<int> num_in_flight);

 private:
  static constexpr size_t kMaxFrameBytes = 32;

  template <typename Frame>
  explicit OutgoingMessage(const Frame& frame) : frame_bytes_(sizeof(Frame)) {
    static_assert(sizeof(Frame) <= kMaxFrameBytes);
    std::memcpy(frame_.data(), &frame, sizeof(Frame));
  }
  void add_piece(std::span<const std::byte> piece);
  static void on_sent(void* request, ucs_status_t status, void* self);

  std::array<std::byte, kMaxFrameBytes> frame_{};
  const size_t frame_bytes_;
  std::string text_;
  Payload payload_;
  int64_t num_bytes_ = 0;
  std::vector<ucp_dt_iov_t> pieces_;
  bool bulk_ = false;
  std::shared_ptr<int> num_in_flight_;
};

template <typename Frame>
std::unique_ptr<OutgoingMessage> OutgoingMessage::with_text(const Frame& frame, std::string text) {
  std::unique_ptr<OutgoingMessage> message(new OutgoingMessage(frame));
  message->text_ = std::move(text);
  message->add_piece(std::as_bytes(std::span(message->text_)));
  return message;
}

template <typename Frame>
std::unique_ptr<OutgoingMessage> OutgoingMessage::with_payload(const Frame& frame,
                                                               Payload payload) {
  std::unique_ptr<OutgoingMessage> message(new OutgoingMessage(frame));
  message->bulk_ = true;
  message->payload_ = std::move(payload);
  for (const auto piece : message->payload_.pieces) message->add_piece(piece);
  return message;
}

}  // namespace millrace::comm
